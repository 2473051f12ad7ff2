"""Keeps the classes of Spark as this machine's JVM has parsed and verified them, so that its next start is faster.

A job's JVM starts and ends with the job, and an eighth of a small run's processor time was for loading the same classes
again. Java calls such a file an archive for class data sharing (`java -XX:SharedArchiveFile`). It
ignores an archive that doesn't fit its version, its jars, or its settings.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from pgoutput_etl.cache_folders import cache_folders
from pgoutput_etl.console import Progress

_QUIET = "-Xlog:cds=off,cds+dynamic=off,class+path=off"  # instead of lines on standard output about each jar or class

_UNUSED = 30 * 24 * 3600  # seconds after which another version's archive is deleted

_WANTED = "pgoutput_etl.classes"  # the JVM's property with the file that it could write


def class_options(spark_home: str, java_version: str, java_options: str) -> list[str]:
    """The JVM's options to use its archive, or to be able to write one.

    The first start leaves an empty file, and the next one that finds it writes the archive: where each run begins with
    an empty disk, as in a container, an archive would only cost time. java_version: all that `java -version` prints.
    java_options: what the user has set.
    """
    if any(name in java_options for name in ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")):
        return []
    jars = Path(spark_home, "jars")
    with suppress(OSError):
        key = repr((java_version, str(jars.resolve()), jars.stat().st_mtime_ns)).encode()
        archive = cache_folders()[-1] / f"classes-{hashlib.sha256(key).hexdigest()[:32]}.jsa"
        archive.parent.mkdir(parents=True, exist_ok=True)
        is_first = not archive.exists()
        archive.touch()  # is in use
        if archive.stat().st_size:
            return [_QUIET, f'-XX:SharedArchiveFile="{archive}"']
        if not is_first:
            return [_QUIET, f'-D{_WANTED}="{archive}"', "-XX:+RecordDynamicDumpInfo"]
    return []


def keep_classes(progress: Progress) -> None:
    """Writes the archive of a JVM that was started without one: some seconds, and 150 to 200 MB. Without it, jobs only
    start more slowly, so nothing is raised."""
    archive = _wanted()
    if archive is None or _is_written(archive):
        return
    unfinished = archive.with_name(f"{archive.name}.{secrets.token_hex(8)}")
    with suppress(Exception):  # a full disk, a read-only home, another vendor's JVM
        progress("keeping Java's classes, from which the next job starts faster")
        _dump(str(unfinished))
        _delete_unused(archive.parent)
        unfinished.replace(archive)
    with suppress(OSError):
        unfinished.unlink()


def _is_written(archive: Path) -> bool:
    """True after a first source of the same process, too."""
    with suppress(OSError):
        return archive.stat().st_size > 0
    return False


def _wanted() -> Path | None:
    gateway = _gateway()
    file = gateway.jvm.java.lang.System.getProperty(_WANTED) if gateway is not None else None
    return Path(file) if file else None


def _gateway() -> Any:
    """None without a JVM, as in a client of Spark Connect."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return None
    return cast(Any, SparkContext)._gateway


def _dump(file: str) -> None:
    """As `jcmd PROCESS VM.cds dynamic_dump FILE` does, which a JRE lacks. The class of Java's own implementation is
    not accessible, so the method is called by reflection. It prints a line, which nobody needs."""
    gateway = _gateway()
    java, io = gateway.jvm.java.lang, gateway.jvm.java.io

    def array(of: Any, *values: object) -> Any:
        made = gateway.new_array(of, len(values))
        for index, value in enumerate(values):
            made[index] = value
        return made

    server = java.management.ManagementFactory.getPlatformMBeanServer()
    commands = gateway.jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    methods = java.Class.forName("javax.management.MBeanServer").getMethods()
    invoke = next(method for method in methods if method.getName() == "invoke")
    arguments = array(java.Object, array(java.String, "dynamic_dump", file))
    signature = array(java.String, "[Ljava.lang.String;")
    printed = java.System.out
    java.System.setOut(io.PrintStream(io.OutputStream.nullOutputStream()))
    try:
        invoke.invoke(server, array(java.Object, commands, "vmCds", arguments, signature))
    finally:
        java.System.setOut(printed)


def _delete_unused(folder: Path) -> None:
    for archive in folder.glob("classes-*"):
        if time.time() - archive.stat().st_mtime > _UNUSED:
            archive.unlink()

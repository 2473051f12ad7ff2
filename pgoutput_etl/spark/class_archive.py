"""Caches Spark's classes as parsed and verified by this machine's JVM, so that the next JVM starts faster.

Each job starts a JVM, and a small run spent an eighth of its processor time on loading the same classes again. Java
calls such a file a class data sharing archive (`java -XX:SharedArchiveFile`). It ignores an archive that doesn't match
its version, jars, or settings.
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

_QUIET = "-Xlog:cds=off,cds+dynamic=off,class+path=off"  # otherwise, Java prints lines about jars and classes

_UNUSED = 30 * 24 * 3600  # seconds until another version's archive is deleted

_WANTED = "pgoutput_etl.classes"  # the JVM property that names the file to write


def class_options(spark_home: str, java_version: str, java_options: str) -> list[str]:
    """The JVM options to use its archive, or to be able to write one.

    The first start only leaves an empty file, and the next start that finds it writes the archive. Runs that always
    begin with an empty disk, as in a container, therefore waste no time on writing one. java_version: the whole output
    of `java -version`. java_options: set by the user.
    """
    if any(name in java_options for name in ("-Xshare", "SharedArchiveFile", "ArchiveClassesAtExit")):
        return []
    jars = Path(spark_home, "jars")
    with suppress(OSError):
        key = repr((java_version, str(jars.resolve()), jars.stat().st_mtime_ns)).encode()
        archive = cache_folders()[-1] / f"classes-{hashlib.sha256(key).hexdigest()[:32]}.jsa"
        archive.parent.mkdir(parents=True, exist_ok=True)
        is_first = not archive.exists()
        archive.touch()  # marks it as used
        if archive.stat().st_size:
            return [_QUIET, f'-XX:SharedArchiveFile="{archive}"']
        if not is_first:
            return [_QUIET, f'-D{_WANTED}="{archive}"', "-XX:+RecordDynamicDumpInfo"]
    return []


def keep_classes(progress: Progress) -> None:
    """Writes the archive of a JVM that was started without one, which takes a few seconds and 150 to 200 MB. Raises
    nothing, because without it jobs only start more slowly."""
    archive = _wanted()
    if archive is None or _is_written(archive):
        return
    unfinished = archive.with_name(f"{archive.name}.{secrets.token_hex(8)}")
    with suppress(Exception):  # such as a full disk, a read-only home, or another vendor's JVM
        progress("keeping Java's classes, from which the next job starts faster")
        _dump(str(unfinished))
        _delete_unused(archive.parent)
        unfinished.replace(archive)
    with suppress(OSError):
        unfinished.unlink()


def _is_written(archive: Path) -> bool:
    """True also if an earlier source in this process wrote it."""
    with suppress(OSError):
        return archive.stat().st_size > 0
    return False


def _wanted() -> Path | None:
    gateway = _gateway()
    file = gateway.jvm.java.lang.System.getProperty(_WANTED) if gateway is not None else None
    return Path(file) if file else None


def _gateway() -> Any:
    """None without a JVM, as in a Spark Connect client."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return None
    return cast(Any, SparkContext)._gateway


def _dump(file: str) -> None:
    """Does what `jcmd PROCESS VM.cds dynamic_dump FILE` does, but a JRE has no jcmd. Java's implementation class is not
    accessible, so the method is called by reflection. It prints a line, which is suppressed."""
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

"""Starts a local JVM that prints only warnings and errors, to standard error: standard output is for reports.

Its output contains no values of rows, except with --debug or a logging configuration of the user's own.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from py4j.java_gateway import JavaGateway
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway

from pgoutput_etl.console import DEBUG, is_json_log, log_level
from pgoutput_etl.errors import RunError
from pgoutput_etl.spark.class_archive import class_options
from pgoutput_etl.spark.jvm_output import GUARD
from pgoutput_etl.spark.options import is_local, submitting
from pgoutput_etl.spark.packages import check_cache

_FOLDER = Path(__file__).parent

_LOG = _FOLDER / "log4j2.properties"

# See log4j2.properties.
_LOG_CONFIGURATION, _LOG_DETAIL = "log4j2.configurationFile", "pgoutput_etl.log"
_LOG_LEVEL, _LOG_TEXTS = "pgoutput_etl.level", "pgoutput_etl.texts"

_OPTIONS = "SPARK_SUBMIT_OPTS"  # the first of the JVM's options, so all others take precedence

# In other languages, Java may write digits of another script into file names. With only one compiler, it would reserve
# so little memory for compiled code that ten small tables fill it.
_LOCALE = "-Duser.language=en -Duser.country=US"
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
_CHARACTERS = "LC_ALL"

# For Spark on a machine whose name doesn't resolve.
_ADDRESS = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}

_JAVA_SETTINGS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

_JAVA_VARIABLES = (_OPTIONS, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")

_STUB = re.compile("Unable to locate a Java Runtime|No Java runtime present")  # what macOS has in place of a Java

_LOG_SUFFIXES = ("properties", "yaml", "yml", "json", "jsn", "xml")


def start_jvm(
    settings: Mapping[str, str], is_light: bool = False, own: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Starts the JVM with these settings, unless one is running. Every user of the machine can read its command line,
    so settings in `own`, which Spark reads from its own file, are left out.

    is_light: there is little work, so the JVM compiles quickly with few optimizations and collects garbage with one
    thread. Raises RunError if there is no suitable Java, or if the JVM doesn't start, after it has printed the reason
    to standard error.
    """
    if SparkContext._gateway is not None:
        return
    version = _check_java()
    _check_loopback()
    with _environment(settings, is_light, own, version):
        check_cache(settings, _java_options(settings))
        gateway = _launch()
    SparkContext._ensure_initialized(gateway=gateway)


def _check_java() -> str:
    """The output of `java -version`. Raises a one-line RunError where Spark's script and Java would print pages."""
    home = os.environ.get("JAVA_HOME")
    java, place = (str(Path(home, "bin", "java")), f" (JAVA_HOME is {home})") if home else ("java", "")
    how = "install a JDK or JRE 17 or 21, such as Debian's openjdk-17-jre-headless, or point JAVA_HOME at one"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        raise RunError(f"Java 17 or newer is required, and none was found{place}: {how}") from None
    says = done.stderr + done.stdout
    version = re.search(r'version "(\d+)', says)
    if version is None and done.returncode and (reason := _reason(says)):
        raise RunError(
            f"Java does not start: {reason} (check JDK_JAVA_OPTIONS, JAVA_TOOL_OPTIONS, and ulimit -v: it needs some "
            "GB of addresses)"
        )
    if version is None or int(version[1]) < 17:
        what = "none was found" if version is None else f"this is {version[1]}"
        raise RunError(f"Java 17 or newer is required, and {what}{place}: {how}")
    return says


def _reason(says: str) -> str:
    """Why Java doesn't start, empty if there is none. Java repeats its options, whose values may be secret."""
    if _STUB.search(says):
        return ""
    lines = (re.sub(r"=.*?('?)$", r"=…\1", line) for line in says.splitlines() if "Picked up " not in line)
    return " ".join(word for line in lines for word in line.split())


def _check_loopback() -> None:
    """Raises RunError if this machine has no loopback address, over which Python and the JVM communicate."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        raise RunError(f"Spark did not start: 127.0.0.1 can't be used on this machine: {error.strerror}") from None


def _launch() -> JavaGateway:
    try:
        with _copied_output() as stderr:
            return launch_gateway(None, {"stdout": stderr, "stderr": stderr})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        raise RunError(
            f"Spark did not start ({error.getCondition()}): the lines above say why. It needs Java 17 or newer and, to "
            "download Delta Lake the first time, Maven Central or a mirror of it"
        ) from None


def _java_options(settings: Mapping[str, str]) -> str:
    own = (os.environ.get(name, "") for name in _JAVA_VARIABLES)
    return " ".join((*own, *(settings.get(key, "") for key in _JAVA_SETTINGS)))


@contextmanager
def _environment(settings: Mapping[str, str], is_light: bool, own: Mapping[str, str], version: str) -> Iterator[None]:
    """Sets the JVM's settings, language, character encoding, address, and class archive; Spark's logging, unless the
    user's Spark configures it; and for little work, compiler and collector, unless the user has chosen a collector."""
    submit = submitting({key: value for key, value in settings.items() if own.get(key) != value})
    before = {name: os.environ.get(name) for name in (_OPTIONS, _CHARACTERS, *_ADDRESS, *submit)}
    options = [_LOCALE, before[_OPTIONS] or ""]
    if is_light and "GC" not in _java_options(settings):
        options.insert(0, _LIGHT)
    options += class_options(_find_spark_home(), version, _java_options(settings))
    conf = Path(os.environ.get("SPARK_CONF_DIR") or f"{_find_spark_home()}/conf")
    if _LOG.is_file() and not any((conf / f"log4j2.{suffix}").is_file() for suffix in _LOG_SUFFIXES):
        level = log_level().of_libraries
        texts = "WARN" if level == "INFO" else level
        options.insert(0, f'-D{_LOG_CONFIGURATION}="{_LOG}" -D{_LOG_LEVEL}={level} -D{_LOG_TEXTS}={texts}')
        if DEBUG in os.environ:
            options.insert(0, f"-D{_LOG_DETAIL}=full")
    os.environ.update({_OPTIONS: " ".join(options), **submit})
    if not re.search("utf-?8", _characters(), re.IGNORECASE):
        os.environ[_CHARACTERS] = "C.UTF-8"
    if is_local(settings) and not any(map(before.get, _ADDRESS)) and not _is_known():
        os.environ.update(_ADDRESS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _is_known() -> bool:
    """False if this machine's name, which Java looks up, has no address."""
    try:
        return bool(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return False


def _characters() -> str:
    """The locale that determines the encoding of file names."""
    return next(filter(None, (os.environ.get(name) for name in (_CHARACTERS, "LC_CTYPE", "LANG"))), "")


def guard_output() -> None:
    """From here on, the JVM's output contains no values of rows (spark/jvm_output.py), except with --debug or another
    logging configuration, whose lines the copying process can't parse."""
    system = cast(Any, SparkContext)._jvm.java.lang.System
    configuration = str(system.getProperty(_LOG_CONFIGURATION))
    if DEBUG not in os.environ and configuration.endswith(f"/pgoutput_etl/spark/{_LOG.name}"):
        system.err.println(GUARD)


def private_temporary_folder() -> str:
    """A private folder for rows that Spark keeps on disk, which the JVM deletes when it ends. Spark's own folders are
    readable by everybody."""
    java = cast(Any, SparkContext)._jvm.java
    folder = tempfile.mkdtemp(prefix="pgoutput-etl.", dir=java.lang.System.getProperty("java.io.tmpdir"))
    java.io.File(folder).deleteOnExit()
    return folder


_COPIERS: list[subprocess.Popen[bytes]] = []  # referenced until this process ends, as a running Popen must be


@contextmanager
def _copied_output() -> Iterator[int]:
    """A file descriptor for the JVM's output."""
    read, write = os.pipe()
    options = {"--debug": DEBUG in os.environ, "--json": is_json_log()}
    command = [sys.executable, "-IS", str(_FOLDER / "jvm_output.py"), *(name for name, on in options.items() if on)]
    copier = subprocess.Popen(command, stdin=read, stdout=subprocess.DEVNULL)
    os.close(read)
    try:
        yield write
    except BaseException:
        os.close(write)
        copier.wait()  # until everything that the JVM printed is written
        raise
    os.close(write)
    _COPIERS.append(copier)

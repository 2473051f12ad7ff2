"""Copies a JVM's output to standard error, without Ivy's listing of packages, unless Ivy fails. After the line GUARD,
copies only lines that are known to contain no values of rows. Stack traces are only copied with --debug.

`start_jvm` runs this file in a separate process, which ends with the JVM. It imports nothing from the package. Before
GUARD, no row has been read; after it, Python workers and uncaught errors may print anything.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timezone

# Printed through the JVM once the session has started, unless the user wants everything (spark/jvm.py).
GUARD = "pgoutput_etl: from here on without rows' values"

WITHHELD = (
    b"Spark or a Python worker printed lines that may contain rows' values. To see them, run the same command with "
    b"--debug\n"
)

# The JVM's remarks about options from Spark and the environment.
_REMARKS = (b"WARNING: Using incubator modules", b"NOTE: Picked up JDK_JAVA_OPTIONS", b"Picked up JAVA_TOOL_OPTIONS")

_BEGIN, _DOWNLOAD, _END = b":: loading settings ::", b"downloading ", b" artifacts copied, "

# The part of a line that is copied: log lines, whose layout in log4j2.properties has no values; the JVM's own warnings;
# VACUUM's result; the class of an error, without its text.
_KNOWN = re.compile(
    rb"\d\d:\d\d:\d\d (?:FATAL|ERROR|WARN|INFO) [\w$]+:.*"
    rb"|(?:OpenJDK|Java HotSpot)[^:]* warning: .*"
    rb"|(?:Terminating|Aborting) due to java\.lang\.OutOfMemoryError.*"
    rb"|# (?:A fatal error has been detected|There is insufficient memory|An error report file).*"
    rb"|(?:Deleted|Found) \d+ files .*in a total of \d+ directories"
    rb'|(?:Exception in thread "[^"]*" )?(?:[a-z]\w*\.)+[A-Z][\w$]*(?:Error|Exception)\b'
)

# A log line: its level, logger, and text
_LOGGED = re.compile(r"\d\d:\d\d:\d\d (FATAL|ERROR|WARN|INFO) ([\w$]+): ?(.*)")

_LEVELS = {"FATAL": "CRITICAL", "WARN": "WARNING"}  # their names in Python; other lines are warnings

# A line of a stack trace
_FRAME = re.compile(rb"\s+(?:at |\.\.\. \d+ (?:more|common frames omitted))")


def copy_without_listing(lines: Iterable[bytes], write: Callable[[bytes], object]) -> None:
    """Holds back the lines from Ivy's first to its last, except the addresses of downloads; writes them if the last one
    doesn't follow."""
    listing: list[bytes] | None = None
    for line in lines:
        if listing is None and line.startswith(_BEGIN):
            listing = []
        if listing is None:
            if not line.startswith(_REMARKS):
                write(line)
        elif _END in line:
            listing = None
        else:
            listing.append(line)
            if line.startswith(_DOWNLOAD):
                write(line.partition(b" ...")[0].rstrip() + b"\n")
    for line in listing or ():
        write(line)


def without_values(lines: Iterable[bytes], is_debugging: bool = False) -> Iterator[bytes]:
    """Lines before GUARD, and the known parts of lines after it. Mentions once that others were withheld."""
    is_guarded = is_mentioned = False
    for line in lines:
        if line.strip() == GUARD.encode():
            is_guarded = True
        elif not is_guarded:
            if is_debugging or not _FRAME.match(line):
                yield line
        elif (known := _KNOWN.match(line)) is not None:
            yield known[0].rstrip() + b"\n"
        elif not is_mentioned and line.strip() and not _FRAME.match(line):
            is_mentioned = True
            yield WITHHELD


def as_json(line: bytes) -> bytes:
    """The line as an object like those of `console.print_to_stderr`, with the current time in UTC."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    logged = _LOGGED.fullmatch(text)
    level, logger, message = ("WARN", "", text) if logged is None else logged.groups()
    values = {
        "time": datetime.now(timezone.utc).isoformat(),
        "level": _LEVELS.get(level, level),
        "logger": f"spark.{logger}".rstrip("."),
        "message": message,
    }
    return f"{json.dumps(values)}\n".encode()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the JVM, which may still print something
    printed = without_values(iter(sys.stdin.buffer.readline, b""), "--debug" in sys.argv)
    form: Callable[[bytes], bytes] = as_json if "--json" in sys.argv else bytes
    copy_without_listing(printed, lambda line: os.write(2, form(line)))

"""Copies the standard error of a starting JVM without Ivy's listing of packages, unless Ivy fails.

spark-submit.sh and `start_jvm` run this file in a process of its own, which ends with the JVM. It imports nothing from
the package.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable

# The JVM's remarks on the options that Spark and the environment give it.
_REMARKS = (b"WARNING: Using incubator modules", b"NOTE: Picked up JDK_JAVA_OPTIONS", b"Picked up JAVA_TOOL_OPTIONS")

_BEGIN, _DOWNLOAD, _END = b":: loading settings ::", b"downloading ", b" artifacts copied, "


def copy_without_listing(lines: Iterable[bytes], write: Callable[[bytes], object]) -> None:
    """Lines from Ivy's first to its last are kept back, except the addresses of downloads, and written if no last one
    follows."""
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


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the JVM, which may still have something to say
    copy_without_listing(iter(sys.stdin.buffer.readline, b""), lambda line: os.write(2, line))

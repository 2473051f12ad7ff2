"""Handles standard output that is closed, has lost its reader, or is on a full disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pgoutput_etl.errors import RunError


def replace_closed_streams() -> None:
    """Opens the null device for each closed standard stream, so that no other file gets its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        stream or Path(os.devnull).open(mode)  # noqa: SIM115 # until the process ends
        for stream, mode in ((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w"))
    )


class StandardOutput:
    """A context for code that prints a report. If its reader has ended, the rest is discarded.

    Raises RunError if it can't be written for another reason.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        if error is None:
            try:
                sys.stdout.flush()
            except OSError as late:
                error = late
        if not isinstance(error, OSError):
            return False
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the buffer
        if not isinstance(error, BrokenPipeError):
            reason = f"standard output can't be written ({error.strerror}), so this run's report is lost"
            raise RunError(reason) from None
        return True

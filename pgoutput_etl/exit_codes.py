"""The exit codes of the jobs."""

from __future__ import annotations

from collections.abc import Iterable

from pgoutput_etl.errors import ConfigError, TryLaterError

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_QUARANTINE = 3  # finished, but something was set aside
EXIT_TRY_LATER = 75  # sysexits' EX_TEMPFAIL: nothing is wrong, and a later run may succeed
EXIT_STOPPED = 130  # by SIGINT (Ctrl-C), as in shells
EXIT_DIFFERENT = 3  # verify: tables differ from the other side, or are held


def exit_code_of(error: Exception) -> int:
    """The exit code of a run that `error` ended."""
    if isinstance(error, TryLaterError):
        return EXIT_TRY_LATER
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED


# From codes that require a correction to codes that require nothing.
_WORST_FIRST = (EXIT_STOPPED, EXIT_USAGE, EXIT_FAILED, EXIT_QUARANTINE, EXIT_TRY_LATER, EXIT_DONE)


def worst_code(codes: Iterable[int]) -> int:
    """The exit code of several runs in one process."""
    return min(codes, key=_WORST_FIRST.index)


def quarantine_code(*set_aside: object) -> int:
    """The exit code of a finished run. set_aside: damage, refused files, and reasons why tables are held."""
    return EXIT_QUARANTINE if any(set_aside) else EXIT_DONE

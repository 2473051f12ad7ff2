"""Tells from a Delta table's history whether others changed its rows."""

from __future__ import annotations

from collections.abc import Iterable

# Commits after which a table's rows are as they were.
_OF_VACUUM = frozenset({"VACUUM START", "VACUUM END"})

_HARMLESS = frozenset({"OPTIMIZE", *_OF_VACUUM})


def is_as_recorded(operations: Iterable[str]) -> bool:
    """Whether a table has the rows that the last batch left, by the commits that came since."""
    return _HARMLESS.issuperset(operations)


def changes_files(operation: str) -> bool:
    """Whether a version that a commit made may have other files than the one before it."""
    return operation not in _OF_VACUUM

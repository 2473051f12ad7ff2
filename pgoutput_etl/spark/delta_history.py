"""Recognizes commits in a Delta table's history that leave its rows or files unchanged."""

from __future__ import annotations

from collections.abc import Iterable

_VACUUM = frozenset({"VACUUM START", "VACUUM END"})

_LAYOUT = frozenset({"CLUSTER BY", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"})

# The commits of DROP FEATURE (load/layout.py)
_WITHOUT_FEATURE = frozenset({"DROP FEATURE", "Deletion Vector Tombstones", "Empty Commit"})

_REWRITES_FILES = frozenset({"OPTIMIZE", "REORG", "REMOVE COLUMN MAPPING"})

_KEEP_ROWS = frozenset({*_REWRITES_FILES, *_VACUUM, *_LAYOUT, *_WITHOUT_FEATURE})


def is_as_recorded(operations: Iterable[str]) -> bool:
    """True if a table still has the rows that the last batch left. operations: of the commits since then."""
    return _KEEP_ROWS.issuperset(operations)


def changes_files(operation: str) -> bool:
    """True if a commit's version may have other files than the previous one."""
    return operation not in _VACUUM | _LAYOUT | _WITHOUT_FEATURE

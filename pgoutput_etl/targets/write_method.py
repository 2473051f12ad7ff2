"""Chooses the method that writes a batch's rows to a target, based on facts about both.

An INSERT doesn't prove that its key is new: a publication may omit TRUNCATEs or DELETEs, a table may leave a
publication and return, a row filter turns UPDATEs into INSERTs, and transactions of a refused origin are not applied.
Facts must therefore be proven. A fact that was not checked, or can't be proven, is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# A table of up to this many rows and bytes is rewritten in less time than a MERGE takes.
SMALL_ROWS = 50_000
SMALL_BYTES = 1 << 22


def has_few(rows: int | None) -> bool:
    """rows: a table's row count; None if unknown."""
    return rows is not None and rows <= SMALL_ROWS


class WriteMethod(Enum):
    """How a batch's rows are written to a table. Each method makes one Delta commit."""

    OVERWRITE = "overwrite"  # the batch's rows replace all of the table's rows
    APPEND = "append"  # the batch's rows are added
    MERGE = "merge"  # a MERGE that updates, inserts, and deletes
    REWRITE = "rewrite"  # the table is rewritten with the batch's changes: a bag, or a small table


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """Facts about a target and the changes of a batch.

    has_key: the table isn't a bag. is_empty: the target has no rows. only_inserts: no row of the target is updated or
    deleted. keys_are_unique: no two changes have the same key. keys_are_absent: no row of the target has a key of the
    batch. is_small: rewriting the table takes less time than a MERGE.
    """

    has_key: bool
    is_empty: bool = False
    only_inserts: bool = False
    keys_are_unique: bool = False
    keys_are_absent: bool = False
    is_small: bool = False


def write_method(facts: WriteFacts) -> WriteMethod:
    """The cheapest method that is correct even if all unproven facts are false. If changes `need_reduction`, the caller
    reduces them first."""
    if facts.is_empty:
        return WriteMethod.OVERWRITE
    if facts.only_inserts and (facts.keys_are_absent or not facts.has_key):
        return WriteMethod.APPEND
    if facts.is_small or not facts.has_key:
        return WriteMethod.REWRITE
    return WriteMethod.MERGE


def need_reduction(facts: WriteFacts) -> bool:
    """True if the changes must be reduced to the last one per key."""
    return facts.has_key and not facts.keys_are_unique


def absence_matters(facts: WriteFacts) -> bool:
    """True if `keys_are_absent` decides the method, so it is worth checking."""
    return facts.has_key and facts.only_inserts and not facts.is_empty


def size_matters(facts: WriteFacts) -> bool:
    """True if `is_small` decides the method."""
    return write_method(facts) is WriteMethod.MERGE

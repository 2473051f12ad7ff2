"""The method by which a batch's rows are written to a target, decided from facts about both.

An INSERT does not prove that its key is new: a TRUNCATE or DELETE may be left out of a publication, a table may leave a
publication and return, a row filter turns UPDATEs into INSERTs, and transactions of a refused origin are not applied.
A fact is therefore something that was proven. A fact that was not checked, or could not be proven, is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# A table of at most so many rows, in files of so many bytes, is written anew in less time than a MERGE takes.
SMALL_ROWS = 50_000
SMALL_BYTES = 1 << 22


class WriteMethod(Enum):
    """Each method makes one Delta commit."""

    OVERWRITE = "overwrite"  # the batch's rows become all of the table's rows
    APPEND = "append"  # the batch's rows are added
    UPSERT = "upsert"  # a MERGE that updates and inserts
    MERGE = "merge"  # a MERGE that updates, inserts and deletes
    REWRITE = "rewrite"  # the table is written anew, with the batch's changes: a bag, or a small table


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """Facts about a target and the changes of a batch.

    has_key: the table is no bag. is_empty: the target has no rows. only_inserts: no row of the target is updated or
    deleted. keys_are_unique: no two changes have the same key. keys_are_absent: no row of the target has a key of the
    batch. is_small: the table is rewritten in less time than a MERGE takes.
    """

    has_key: bool
    is_empty: bool = False
    only_inserts: bool = False
    keys_are_unique: bool = False
    keys_are_absent: bool = False
    is_small: bool = False


def write_method(facts: WriteFacts) -> WriteMethod:
    """The cheapest method that is correct whatever is not proven. The caller reduces changes that `need_reduction`."""
    if facts.is_empty:
        return WriteMethod.OVERWRITE
    if facts.only_inserts and (facts.keys_are_absent or not facts.has_key):
        return WriteMethod.APPEND
    if facts.is_small or not facts.has_key:
        return WriteMethod.REWRITE
    return WriteMethod.UPSERT if facts.only_inserts else WriteMethod.MERGE


def need_reduction(facts: WriteFacts) -> bool:
    """True if the changes must be reduced to the last one of each key."""
    return facts.has_key and not facts.keys_are_unique


def absence_matters(facts: WriteFacts) -> bool:
    """True if `keys_are_absent` decides the method, so that it is worth checking."""
    return facts.has_key and facts.only_inserts and not facts.is_empty


def size_matters(facts: WriteFacts) -> bool:
    """True if `is_small` decides the method."""
    return facts.has_key and write_method(facts) in (WriteMethod.UPSERT, WriteMethod.MERGE)

"""The method by which a batch's rows reach a target, decided from facts about both.

An INSERT does not prove that its key is new: a TRUNCATE or DELETE may be left out of a publication, a table may leave a
publication and return, a row filter turns UPDATEs into INSERTs, and transactions of a refused origin are not applied.
A fact is therefore something that was proven. A fact that nobody looked for, or could not prove, is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class WriteMethod(Enum):
    """Each is one Delta commit."""

    OVERWRITE = "overwrite"  # the batch's rows are all that the table has
    APPEND = "append"  # the batch's rows are added to those that are there
    UPSERT = "upsert"  # a MERGE that updates and inserts
    MERGE = "merge"  # a MERGE that updates, inserts and deletes
    REWRITE = "rewrite"  # a bag is written anew, without the rows that the batch deletes


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """Facts about a target and the changes of a batch.

    has_key: the table is no bag. is_empty: the target has no rows. only_inserts: nothing of the target is updated or
    deleted. keys_are_unique: no two changes have one key. keys_are_absent: no row of the target has a key of the batch.
    """

    has_key: bool
    is_empty: bool = False
    only_inserts: bool = False
    keys_are_unique: bool = False
    keys_are_absent: bool = False


def write_method(facts: WriteFacts) -> WriteMethod:
    """The cheapest method that is right whatever is not proven. Changes that need_reduction are reduced first."""
    if facts.is_empty:
        return WriteMethod.OVERWRITE
    if not facts.only_inserts:
        return WriteMethod.MERGE if facts.has_key else WriteMethod.REWRITE
    if facts.keys_are_absent or not facts.has_key:
        return WriteMethod.APPEND
    return WriteMethod.UPSERT


def need_reduction(facts: WriteFacts) -> bool:
    """Whether the last change of each key has to be found before any is written."""
    return facts.has_key and not facts.keys_are_unique


def absence_matters(facts: WriteFacts) -> bool:
    """Whether `keys_are_absent` decides the method, so that it pays to look."""
    return facts.has_key and facts.only_inserts and not facts.is_empty

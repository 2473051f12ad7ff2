"""The steps by which transactions changed a table's rows, and which of these rows have changed since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

Text = str | None

Key = tuple[Text, ...]


class Operation(Enum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Row:
    """A row's values, as PostgreSQL's texts. unknown: positions of values that were never sent. absent: the subset that
    belongs to columns which the table did not have yet."""

    texts: tuple[Text, ...]
    unknown: frozenset[int] = frozenset()
    absent: frozenset[int] = frozenset()

    def filled_from(self, before: Row | None) -> Row:
        """The row after an UPDATE, with values that it left unchanged and did not send taken from before."""
        if not self.unknown or before is None:
            return self
        texts = tuple(before.texts[i] if i in self.unknown else text for i, text in enumerate(self.texts))
        unknown = self.unknown & before.unknown
        return Row(texts, unknown, unknown & (self.absent | before.absent))


@dataclass(frozen=True, slots=True)
class Change:
    """A change in the archive. sequence: orders the changes of one commit, also across tables. is_selected: made by a
    transaction to undo. old: the key of the row that it changed; None for an INSERT. new, key: the resulting row and
    its key; None for a DELETE. In a table without a key, a row's texts are its key. absent: positions of columns that
    the table did not have yet."""

    lsn: int
    xid: int
    sequence: int
    is_selected: bool
    old: Key | None
    key: Key | None
    new: Row | None
    absent: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Step:
    """A selected transaction's effect on one row. before: None for an INSERT; after: None for a DELETE."""

    lsn: int
    sequence: int
    before: Row | None
    after: Row | None

    @property
    def kept(self) -> frozenset[int]:
        """Positions of new columns, which keep what an UPDATE set."""
        if self.before is None or self.after is None:
            return frozenset()
        return self.before.absent - self.after.unknown

    @property
    def operation(self) -> Operation:
        if self.before is None:
            return Operation.INSERT
        return Operation.DELETE if self.after is None else Operation.UPDATE


@dataclass(frozen=True, slots=True)
class Conflict:
    """Rows that share keys and can't be restored. keys: all that they have had since. xids: later transactions that
    changed them; empty if a former value is not in the archive."""

    keys: tuple[Key, ...]
    xids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TableHistory:
    """steps: those to undo, in the order in which they happened."""

    steps: tuple[Step, ...]
    conflicts: tuple[Conflict, ...]


@dataclass(slots=True)
class _Group:
    """Rows that had the same key one after the other, so they are undone together or not at all."""

    keys: dict[Key, None]
    steps: list[Step] = field(default_factory=list)
    xids: set[int] = field(default_factory=set)
    is_lost: bool = False


def history_of(changes: Iterable[Change], rows: Mapping[Key, Row], has_key: bool) -> TableHistory:
    """changes: every change since the first selected one, of keys that a selected one touched, in order. rows: those
    before the changes, by key."""
    current, groups = dict(rows), dict[Key, _Group]()
    for change in changes:
        before = _found(change, current, has_key)
        is_second = change.old is None and change.key in current  # an earlier DELETE was not sent
        after = None if change.new is None else change.new.filled_from(before)
        if has_key and after is not None and change.key is not None:
            current[change.key] = after
        keys = [key for key in (change.old, change.key) if key is not None]
        if not change.is_selected and not any(key in groups for key in keys):
            continue
        group = _joined(groups, keys)
        if not change.is_selected:
            group.xids.add(change.xid)
            continue
        if before != after:
            group.steps.append(Step(change.lsn, change.sequence, before, after))
        group.is_lost |= is_second or _is_lost(change, before, after)
    found = {id(group): group for group in groups.values()}.values()
    steps = [step for group in found if not group.xids and not group.is_lost for step in group.steps]
    conflicts = [
        Conflict(tuple(group.keys), tuple(sorted(group.xids)))
        for group in found
        if group.is_lost or (group.steps and group.xids)
    ]
    return TableHistory(tuple(sorted(steps, key=lambda step: (step.lsn, step.sequence))), tuple(conflicts))


def _found(change: Change, current: dict[Key, Row], has_key: bool) -> Row | None:
    if change.old is None:
        return None
    return current.pop(change.old, None) if has_key else Row(change.old)


def _joined(groups: dict[Key, _Group], keys: Iterable[Key]) -> _Group:
    """Merges the groups of these keys into one."""
    together = _Group(dict.fromkeys(keys))
    for group in {id(groups[key]): groups[key] for key in together.keys if key in groups}.values():
        together.keys |= group.keys
        together.steps += group.steps
        together.xids |= group.xids
        together.is_lost |= group.is_lost
    groups |= dict.fromkeys(together.keys, together)
    return together


def _is_lost(change: Change, before: Row | None, after: Row | None) -> bool:
    """True if a value that the step replaced is unknown. A new column doesn't count: it keeps what an UPDATE set."""
    if change.old is None:
        return False
    if before is None:
        return True
    if after is None:
        return bool(before.unknown - change.absent)
    return bool(before.unknown - before.absent - after.unknown)

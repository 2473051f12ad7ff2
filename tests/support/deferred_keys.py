"""Random transactions on a table with a deferrable unique key: as the server's rows, and as the messages it sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from pgoutput_etl.protocol.messages import OldTupleKind, ReplicaIdentity, Update
from tests.support.small_archives import TOAST, Change, T, Value, delete_full, insert, table, tuple_data

COLUMNS = ("pos", "v", "big")

Row = tuple[str, str, str]


@dataclass(slots=True)
class DeferredKeys:
    """rows: of the table, in no order. Some are equal but for their key. deletes_new: a transaction may delete a row
    that it has inserted."""

    random: Random
    rows: list[Row] = field(default_factory=list)
    keys: int = 7
    oid: int = T
    name: str = "t"
    deletes_new: bool = True
    _new: list[Row] = field(default_factory=list)

    @property
    def relation(self) -> Change:
        return table(*COLUMNS, oid=self.oid, name=self.name, identity=ReplicaIdentity.FULL)

    def transaction(self, most: int = 8) -> list[Change]:
        """Random changes, repaired until the key is unique, as the server requires at the commit."""
        self._new = []
        changes = [self._change() for _ in range(self.random.randint(1, most))]
        while doubled := [key for key, count in Counter(row[0] for row in self.rows).items() if count > 1]:
            row = self.random.choice([row for row in self.rows if row[0] in doubled])
            free = [key for key in self._all_keys() if key not in {other[0] for other in self.rows}]
            if self._must_keep(row) or (free and self.random.random() < 0.8):
                changes.append(self._update(row, self.random.choice(free), row[1]))
            else:
                changes.append(self._delete(row))
        return changes

    def shift(self, step: int) -> list[Change]:
        """Moves all rows by one, so that each takes the key of the next one."""
        return [self._update(row, str(int(row[0]) + step), row[1]) for row in sorted(self.rows, reverse=step < 0)]

    def _all_keys(self) -> Sequence[str]:
        return [str(key) for key in range(self.keys)]

    def _change(self) -> Change:
        what = self.random.random()
        key, value = self.random.choice(self._all_keys()), self.random.choice("abc")
        if not self.rows or (what < 0.2 and len(self.rows) < self.keys):
            self.rows.append((key, value, self.random.choice("xy") * 9))
            self._new.append(self.rows[-1])
            return insert(*self.rows[-1], oid=self.oid)
        row = self.random.choice(self.rows)
        if what < 0.3 and not self._must_keep(row):
            return self._delete(row)
        return self._update(row, row[0] if what < 0.4 else key, value)

    def _must_keep(self, row: Row) -> bool:
        return not self.deletes_new and any(row is new for new in self._new)

    def _delete(self, row: Row) -> Change:
        self.rows.remove(row)
        return delete_full(*row, oid=self.oid)

    def _update(self, row: Row, key: str, value: str) -> Change:
        """Leaves a large value unchanged, or not."""
        is_new = any(row is new for new in self._new)
        self.rows.remove(row)
        big = row[2] if self.random.random() < 0.7 else self.random.choice("xy") * 9
        self.rows.append((key, value, big))
        self._new += [self.rows[-1]] * is_new
        sent: Value = TOAST if big == row[2] and self.random.random() < 0.5 else big
        return Update(None, self.oid, OldTupleKind.OLD, tuple_data(*row), tuple_data(key, value, sent))

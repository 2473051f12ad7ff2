"""Random changes of a table's rows, with the row that each is of: the truth that a search must find."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgoutput_etl.lsn import MAX_STORED_LSN
from pgoutput_etl.schema.relation_history import CommitPosition
from tests.support.erased_changes import Place
from tests.support.small_archives import Change, Messages, delete, insert, table, transaction, truncate, update

PERSON = "Ada"

_IDS, _CODES, _NAMES = "1234", "abcde", (PERSON, *(f"v{n}" for n in range(6)))

_ID, _CODE = 0, 2

Texts = tuple[str, str, str]  # id, v, code


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version of a row, as a target may have it."""

    row: int
    texts: Texts
    at: CommitPosition


@dataclass
class RowHistory:
    """A table whose key changes, or to which snapshots bring rows. Each transaction is a file.

    of_row: the number of each change's row, by place. persons: the rows that are the person's at any time. stored: what
    history and soft_delete keep: rows after each commit that changed them, and those that a snapshot brought.
    """

    chance: random.Random
    oid: int
    first_file: int
    transactions: list[Messages] = field(default_factory=list)
    of_row: dict[Place, int] = field(default_factory=dict)
    persons: set[int] = field(default_factory=set)
    stored: list[StoredVersion] = field(default_factory=list)
    _rows: dict[int, Texts] = field(default_factory=dict)
    _count: int = 0
    _key: int = _ID  # the place of its column

    def run(self) -> None:
        has_snapshots = self.chance.random() < 0.5
        for number in range(self.chance.randint(3, 7)):
            lsn = 0x100 * (self.first_file + number + 1)
            if has_snapshots and self.chance.random() < 0.4:
                self._snapshot(lsn - 0x80)
            elif not has_snapshots and self.chance.random() < 0.3:
                codes = [texts[_CODE] for texts in self._rows.values()]
                self._key = _CODE if len(set(codes)) == len(codes) else self._key
            self._transaction(lsn)

    def _snapshot(self, lsn: int) -> None:
        for key in self._free_keys():
            if self.chance.random() < 0.5:
                row = self._new((key, self._name(), self.chance.choice(_CODES)))
                self._store(row, self._rows[row], lsn)

    def _transaction(self, lsn: int) -> None:
        before, file = dict(self._rows), self.first_file + len(self.transactions)
        changes: list[Change] = [table("id", "v", "code", key=("id" if self._key == _ID else "code",), oid=self.oid)]
        users: dict[str, set[int]] = {}  # the rows that have a key in this transaction
        if self.chance.random() < 0.15:
            changes.append(truncate(self.oid))
            self._rows.clear()
        for _ in range(self.chance.randint(1, 4)):
            for row, change in self._change():
                changes.append(change)
                self.of_row[file, len(changes)] = row
                if row in self._rows:
                    users.setdefault(self._rows[row][self._key], set()).add(row)
        self.transactions.append(transaction(file + 1, lsn, *changes))
        for row in sorted(before.keys() | self._rows.keys()):
            texts = self._rows.get(row, before.get(row))
            if texts is not None and users.get(texts[self._key], {row}) == {row}:
                self._store(row, texts, lsn)

    def _change(self) -> Iterator[tuple[int, Change]]:
        kind, free = self.chance.choice("iuuumd"), self._free_keys()
        if kind == "i" or not self._rows:
            for key in free[:1]:
                others = self.chance.choice(_CODES if self._key == _ID else _IDS)
                row = self._new((key, self._name(), others) if self._key == _ID else (others, self._name(), key))
                yield row, insert(*self._rows[row], oid=self.oid)
            return
        row = self.chance.choice(sorted(self._rows))
        texts = list(self._rows[row])
        key_only = [text if n == self._key else None for n, text in enumerate(texts)]
        if kind == "d":
            del self._rows[row]
            yield row, delete(*key_only, oid=self.oid)
            return
        texts[1] = self._name()
        if self.chance.random() < 0.3:
            other = _CODE if self._key == _ID else _ID
            texts[other] = self.chance.choice(_CODES if self._key == _ID else _IDS)
        moves = kind == "m" and bool(free)
        if moves:
            texts[self._key] = free[0]
        self._set(row, (texts[0], texts[1], texts[2]))
        yield row, update(*texts, old_key=key_only if moves else (), oid=self.oid)

    def _free_keys(self) -> list[str]:
        used = {texts[self._key] for texts in self._rows.values()}
        free = [key for key in (_IDS if self._key == _ID else _CODES) if key not in used]
        return self.chance.sample(free, len(free))

    def _name(self) -> str:
        return self.chance.choice(_NAMES)

    def _new(self, texts: Texts) -> int:
        self._count += 1
        self._set(self._count, texts)
        return self._count

    def _set(self, row: int, texts: Texts) -> None:
        self._rows[row] = texts
        if texts[1] == PERSON:
            self.persons.add(row)

    def _store(self, row: int, texts: Texts, lsn: int) -> None:
        self.stored.append(StoredVersion(row, texts, (lsn, MAX_STORED_LSN, MAX_STORED_LSN)))

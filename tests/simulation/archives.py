"""Small archives of a model server, and what the tables have to be after any number of their messages."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import pyarrow as pa

from pgoutput_etl.config.rules import Mode, TableRule
from pgoutput_etl.errors import TableError
from pgoutput_etl.landing.erasure import ERASED_PREFIX
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import Begin, Commit, Insert, PgoutputMessage, Relation, TupleData, Type
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.targets.mismatches import Mismatches
from tests.simulation.catalog import Known, Sent, with_catalog
from tests.simulation.masks import MASKS, SecretColumn, masked_replay, rules
from tests.simulation.modes import Rows, random_modes, replayed
from tests.support import encoder
from tests.support.model.history import random_history, random_options
from tests.support.model.truth import Truth
from tests.support.model.wal import Abort, RunningTransactions
from tests.support.model.walsender import Walsender
from tests.support.model.weights import PUBLISHED

ARCHIVES = 400


@dataclass(frozen=True, slots=True)
class Expected:
    """After the commit at `lsn`. tables: sorted rows by OID, as their modes have them; None for a table whose history
    can't be interpreted. mismatches: of the other tables. messages: sorted logical decoding Messages."""

    lsn: int
    tables: Mapping[int, Rows | None]
    mismatches: Mapping[int, Mismatches | None]
    names: Mapping[tuple[str, str], int]
    messages: tuple[str, ...]


@dataclass(eq=False, slots=True)
class Archive:
    """frames: the messages in order, as they are landed. breaks: the numbers of messages after which the receiver lost
    its connection; the server then sent some of them again. modes: by the table's name. ignored: the numbers of catalog
    Messages that must not count. known: the tables whose definitions are, after each message; empty without any."""

    frames: list[bytes]
    breaks: frozenset[int]
    truth: Truth | None = None
    modes: Mapping[str, Mode] = field(default_factory=dict)
    secret: SecretColumn | None = None
    ignored: frozenset[int] = frozenset()
    known: tuple[Known, ...] = ()
    _expected: dict[tuple[int, str], Expected] = field(default_factory=dict)

    def after(self, frames: Sequence[bytes]) -> Archive:
        """With other messages at its beginning."""
        return replace(self, frames=[*frames, *self.frames[len(frames) :]], _expected={})

    def rules(self, mask: str) -> tuple[TableRule, ...]:
        return rules(self.modes, self.secret, mask)

    def expected(self, count: int, mask: str | None = None) -> Expected:
        """After the first `count` messages. mask: of the secret column; any if None."""
        place = count, mask or next(iter(MASKS))
        if place not in self._expected:
            frames = (frame for number, frame in enumerate(self.frames[:count]) if number not in self.ignored)
            self._expected[place] = _expected(b"".join(frames), self.modes, self.rules(place[1]))
        return self._expected[place]

    def expected_at(self, lsn: int, mask: str | None = None) -> Expected:
        """After the commit at `lsn`."""
        count = next(n for n in range(len(self.frames) + 1) if self.expected(n).lsn == lsn)
        return self.expected(count, mask)

    def snapshot(self, count: int) -> ServerSnapshot | None:
        """Taken on the server right after the last commit in the first `count` messages. None if it has no table whose
        rows the archive knows."""
        if self.truth is None:
            return None
        expected = self.expected(count)
        known = self.truth.as_sent_at(expected.lsn)
        holders = {oid for oid, rows in expected.tables.items() if rows is not None} & {*expected.names.values()}
        tables = {oid: known[oid] for oid in sorted(holders & known.keys())}
        if not tables:
            return None
        rows = {oid: [layout.tuple_of(row) for row in own] for oid, (layout, own) in tables.items()}
        if self.secret is not None and self.secret.oid in rows:
            rows = {**rows, self.secret.oid: [*map(self.secret.kept_secret, rows[self.secret.oid])]}
        relations = tuple(layout.relation for layout, _ in tables.values())
        types = {t.oid: t for layout, _ in tables.values() for t in layout.types}
        return ServerSnapshot(expected.lsn + 1, relations, (*types.values(),), rows)


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """lsn: the rows include all commits before it. rows: by the relation's OID."""

    lsn: int
    relations: tuple[Relation, ...]
    types: tuple[Type, ...]
    rows: Mapping[int, list[TupleData]]

    def content(self, policy: MaskingPolicy | None) -> bytes:
        """A file of one transaction that inserts the rows."""
        messages: list[PgoutputMessage] = [Begin(self.lsn, 0, 1), *self.types, *self.relations]
        for relation in self.relations:
            rows = pa.array([row.to_bytes() for row in self.rows[relation.oid]], pa.binary())
            masked = rows if policy is None else policy.of_relation(relation).mask(rows)
            messages += [Insert(None, relation.oid, read_tuple(row)) for row in masked.to_pylist()]
        messages.append(Commit(self.lsn, self.lsn + 1, 0))
        return b"".join(encoder.encode(message) + b"\n" for message in messages)


def _expected(content: bytes, modes: Mapping[str, Mode], rules: tuple[TableRule, ...]) -> Expected:
    replay = masked_replay(content, rules)
    tables: dict[int, Rows | None] = {}
    mismatches: dict[int, Mismatches | None] = {}
    for oid, rows in replay.rows_by_relation().items():
        mode = modes[replay.assembly.relations.versions(oid).relations[-1].full_name]
        try:
            tables[oid], mismatches[oid] = replayed(mode, replay, oid, rows)
        except TableError:
            tables[oid] = None
    messages = message_texts(replay.logical_messages())
    return Expected(replay.assembly.last_commit_lsn, tables, mismatches, replay.name_holders(), messages)


def message_texts(messages: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Without those that erased changes leave: the ledger has them once it has read the archive again."""
    names = ("prefix", "content", "lsn", "transactional", "xid", "commit_lsn")
    return tuple(sorted(repr([m[name] for name in names]) for m in messages if m["prefix"] != ERASED_PREFIX))


def _without_inserts(messages: Iterable[PgoutputMessage], number: int) -> list[PgoutputMessage]:
    """Without some INSERTs, so that later changes are of rows that no table has."""
    chance = random.Random(f"losses {number}")
    return [m for m in messages if not (isinstance(m, Insert) and chance.random() < 0.6)]


@cache
def archive(number: int) -> Archive:
    chance = random.Random(f"archive {number}")
    options = random_options(chance)
    has_messages = options.server_version >= 14 and number % 3 == 0
    has_catalog = has_messages and number % 6 == 3
    options = replace(options, messages=has_messages, actions=chance.choice((6, 12, 20, 30)))
    if has_catalog:
        options = replace(options, connections=1, evictions=0.6, actions=40, weights=PUBLISHED)
    history = random_history(chance, options)
    aborted = frozenset(r.top for r in history.server.wal if isinstance(r, Abort) and r.xid == r.top)
    messages: list[PgoutputMessage] = []
    breaks = set()
    for connection in history.connections:
        sent = Walsender(options.slot, connection, aborted).run(history.server.wal)
        messages += _without_inserts(sent, number) if number % 4 == 0 else sent
        breaks.add(len(messages))
    relations = _relations(messages)
    if not messages or not (relations.entries or number % 8 == 1):
        return archive(number + ARCHIVES)  # few have no table
    modes = random_modes(random.Random(f"modes {number}"), relations.entries)
    secret = SecretColumn.random(random.Random(f"secret {number}"), relations)
    messages = messages if secret is None else [*secret.keep_secret(messages)]
    described: list[Sent] = []
    if has_catalog:
        described = with_catalog(messages, aborted, random.Random(f"catalog {number}"))
        messages = [sent.message for sent in described]
        breaks = set()
    breaks -= {0, len(messages)}
    if not breaks and chance.random() < 0.6:
        frames = [encoder.encode(message) + b"\n" for message in messages]
    else:
        rows = (encoder.Row(0x1000000 + i, 0, encoder.encode(m)) for i, m in enumerate(messages))
        frames = [encoder.copydata([row]) for row in rows]
    crashes = any(isinstance(record, RunningTransactions) for record in history.server.wal)
    is_whole = number % 4 != 0 and not has_catalog and not crashes
    truth = Truth(history.server.commits) if is_whole else None
    ignored = frozenset(place for place, sent in enumerate(described) if not sent.counts)
    known = tuple(sent.known for sent in described)
    return Archive(frames, frozenset(breaks), truth, modes, secret, ignored, known)


def _relations(messages: Iterable[PgoutputMessage]) -> RelationHistory:
    replay = Replay()
    rows = [encoder.Row(0x1000000 + i, 0, encoder.encode(message)) for i, message in enumerate(messages)]
    replay.add_file("archive", encoder.copydata(rows))
    return replay.assembly.relations

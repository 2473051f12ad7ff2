"""The model server's walsender sends the same messages for the same statements, in the same order, as real ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from pgoutput_etl.protocol.messages import ReplicaIdentity
from tests.support.model import ddl, dml
from tests.support.model import statements as do
from tests.support.model.catalog import INT4, INT8, TEXT
from tests.support.model.history import Options, new_server
from tests.support.model.receiver import TwoPhase
from tests.support.model.slot import Streaming
from tests.support.model.wal import Abort
from tests.support.model.workload import Action, RunsOnServer, Workload
from tests.support.servers.comparable_messages import comparable, is_within, without_repeated_relations
from tests.support.servers.postgres import Server, Version
from tests.support.servers.twin import SETTINGS, Twin, statement_at, twin_of

pytestmark = pytest.mark.e2e

T, U = 16384, 16385
ID, V = "i1", "t2"


@dataclass(frozen=True, slots=True)
class Reconnect:
    """The receiver connects again; the server sends everything after the statement with this number."""

    since: int
    two_phase: bool = False


Script = list[RunsOnServer | tuple[int, RunsOnServer] | Reconnect]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[Version, Server]]:
    with Server(16, SETTINGS) as old, Server(18, SETTINGS) as new:
        yield {16: old, 18: new}


def create(oid: int, name: str) -> ddl.CreateTable:
    return ddl.CreateTable(oid, "public", name, ((ID, INT4), (V, TEXT)), (ID,))


def insert(oid: int, number: int, **values: str) -> dml.InsertRow:
    return dml.InsertRow(oid, ((ID, b"%d" % number), *((name, value.encode()) for name, value in values.items())))


TABLES: Script = [do.Begin(), create(T, "t"), create(U, "u"), insert(T, 1, t2="one"), insert(U, 1), do.Commit()]


def whole(*statements: RunsOnServer) -> Script:
    return [do.Begin(), *statements, do.Commit()]


SCRIPTS: dict[str, Script] = {
    "a column added in a transaction": [
        *whole(insert(T, 2), ddl.AddColumn(T, "i3", INT4), insert(T, 3, i3="3"), insert(U, 2)),
        *whole(insert(T, 4, i3="4")),
    ],
    "a catalog change in a released savepoint": [
        *whole(
            insert(T, 2),
            do.Savepoint(),
            ddl.RenameColumn(T, V, "t3"),
            insert(T, 3),
            do.ReleaseSavepoint(),
            insert(T, 4),
        ),
        *whole(insert(T, 5)),
    ],
    "a catalog change in a rolled-back savepoint": [
        *whole(
            insert(T, 2),
            do.Savepoint(),
            ddl.AddColumn(T, "i3", INT4),
            insert(T, 3),
            do.RollBackToSavepoint(),
            insert(T, 4),
        ),
        *whole(insert(T, 5)),
    ],
    "nested savepoints": [
        *whole(
            *(do.Savepoint(), insert(T, 2), do.Savepoint(), insert(T, 3), do.ReleaseSavepoint(2), do.Savepoint()),
            *(insert(T, 4), do.RollBackToSavepoint(2), insert(T, 5), do.RollBackToSavepoint(1), insert(T, 6)),
        ),
        *(
            do.Begin(),
            do.Savepoint(),
            insert(T, 7),
            do.ReleaseSavepoint(),
            insert(T, 8),
            do.RollBack(),
        ),
    ],
    "swapped names": [
        *whole(
            ddl.RenameTable(T, "public", "between"),
            ddl.RenameTable(U, "public", "t"),
            ddl.RenameTable(T, "public", "u"),
            insert(T, 2),
        ),
        *whole(insert(U, 2)),
    ],
    "swapped names, rolled back": [
        do.Begin(),
        ddl.RenameTable(T, "public", "between"),
        ddl.RenameTable(U, "public", "t"),
        insert(U, 2),
        do.RollBack(),
        *whole(insert(T, 3), insert(U, 3)),
    ],
    "a table moved to another schema": [
        *whole(ddl.RenameTable(T, "other", "t"), insert(T, 2)),
        *whole(insert(T, 3)),
    ],
    "a table dropped and created again": [
        *whole(ddl.DropTable(T), create(T + 9, "t"), insert(T + 9, 2)),
        *whole(insert(T + 9, 3)),
    ],
    "a catalog change, prepared and committed": [
        do.Begin(),
        insert(T, 2),
        ddl.AddColumn(T, "i3", INT4),
        insert(T, 3),
        do.PrepareTransaction("one"),
        *whole(insert(U, 2)),
        do.CommitPrepared("one"),
        *whole(insert(T, 4)),
    ],
    "a catalog change, prepared and rolled back": [
        do.Begin(),
        ddl.RetypeColumn(T, ID, INT8),
        insert(T, 3),
        do.PrepareTransaction("one"),
        *whole(insert(U, 2)),
        do.RollBackPrepared("one"),
        *whole(insert(T, 4)),
    ],
    "prepared without anything to decode": [
        *whole(insert(T, 2)),
        do.Begin(),
        dml.LockRow(T, 4),
        do.PrepareTransaction("committed"),
        do.Begin(),
        dml.LockRow(U, 5),
        do.PrepareTransaction("rolled back"),
        do.CommitPrepared("committed"),
        do.RollBackPrepared("rolled back"),
        do.Begin(),
        do.PrepareTransaction("unknown"),
        do.CommitPrepared("unknown"),
    ],
    "concurrent transactions, one with a rolled-back catalog change": [
        *(
            (0, do.Begin()),
            (1, do.Begin()),
            (0, ddl.AddColumn(T, "i3", INT4)),
            (0, insert(T, 2, i3="1")),
        ),
        *(
            (1, insert(U, 2)),
            (0, insert(T, 3)),
            (0, do.RollBack()),
            (1, insert(T, 4)),
            (1, do.Commit()),
        ),
        *whole(insert(T, 5), insert(U, 5)),
    ],
    "concurrent transactions, one with a committed catalog change": [
        *(
            (0, do.Begin()),
            (1, do.Begin()),
            (1, insert(U, 2)),
            (0, ddl.AddColumn(T, "i3", INT4)),
        ),
        *(
            (0, insert(T, 2, i3="1")),
            (1, insert(U, 3)),
            (0, do.Commit()),
            (1, insert(T, 4)),
            (1, do.Commit()),
        ),
        *whole(insert(T, 5), insert(U, 5)),
    ],
    "a rollback releases a subtransaction's table lock": [
        *(
            (0, do.Begin()),
            (0, do.Savepoint()),
            (0, insert(T, 2)),
            (0, do.RollBackToSavepoint()),
        ),
        *(
            (1, do.Begin()),
            (1, ddl.AddColumn(T, "i3", INT4)),
            (1, do.Commit()),
            (0, insert(T, 3, i3="3")),
            (0, do.Commit()),
        ),
    ],
    "Messages, also in a rolled-back savepoint": [
        do.EmitMessage(False, "p", b"outside"),
        *whole(
            *(insert(T, 2), do.EmitMessage(True, "p", b"inside"), do.EmitMessage(False, "p", b"not part of it")),
            *(do.Savepoint(), do.EmitMessage(True, "p", b"dropped"), do.RollBackToSavepoint(), insert(T, 3)),
        ),
    ],
    "TRUNCATE": [
        *whole(insert(T, 2), dml.Truncate((T, U), 3), insert(T, 3), dml.Truncate((T,)), insert(T, 4), insert(U, 4)),
        *whole(insert(T, 5), insert(U, 5)),
    ],
    "replica identities": [
        *whole(
            ddl.SetIdentity(T, ReplicaIdentity.FULL), dml.UpdateRow(T, 4, ((V, b"~long"),)), dml.UpdateRow(T, 4, ())
        ),
        *whole(ddl.SetKey(T, ()), dml.UpdateRow(T, 4, ((ID, b"7"),)), dml.DeleteRow(T, 4)),
        *whole(ddl.SetIdentity(T, ReplicaIdentity.NOTHING), insert(T, 2, t2="two")),
        *whole(ddl.SetIdentity(T, ReplicaIdentity.INDEX, (V,)), insert(T, 3, t2="~long"), insert(T, 4, t2="b")),
        *whole(ddl.SetKey(T, (ID,)), insert(T, 8, t2="eight")),
    ],
    "transactions from another server": [
        *(
            do.Begin("elsewhere 0", 0x123),
            insert(T, 2),
            do.Commit(),
            *whole(insert(T, 3)),
        ),
        *(
            do.Begin("elsewhere 0", 0x456),
            insert(T, 4),
            do.PrepareTransaction("one"),
            do.CommitPrepared("one"),
        ),
    ],
    "nothing": [
        do.Begin(),
        do.Commit(),
        do.Begin(),
        dml.LockRow(T, 4),
        do.Commit(),
        *whole(ddl.AddColumn(T, "i3", INT4)),
    ],
}

SLOTS = {
    "1": (1, Streaming.OFF, TwoPhase.OFF),
    "2 streaming": (2, Streaming.ON, TwoPhase.OFF),
    "3 two-phase": (3, Streaming.OFF, TwoPhase.ON),
    "3 streaming two-phase": (3, Streaming.ON, TwoPhase.ON),
    "4 parallel two-phase": (4, Streaming.PARALLEL, TwoPhase.ON),
}


def options_of(version: Version, slot: str, *, later: bool = False) -> Options:
    protocol, streaming, two_phase = SLOTS[slot]
    return Options(version, protocol, streaming, TwoPhase.LATER if later else two_phase)


def play(twin: Twin, script: Script) -> None:
    for entry in script:
        if isinstance(entry, Reconnect):
            twin.reconnect(entry.since, two_phase=entry.two_phase)
        else:
            twin.run(Action(*entry) if isinstance(entry, tuple) else Action(0, entry))


def assert_equal(twin: Twin) -> None:
    """A walsender may send more Relation messages than necessary, as it hears of changes ahead of the WAL."""
    for sent, expected in zip(comparable(twin.sent), comparable(twin.expected), strict=True):
        assert without_repeated_relations(sent) == without_repeated_relations(expected)
        assert is_within(expected, sent)


QUICK = {(16, "1"), (18, "4 parallel two-phase")}
RUNS = [
    pytest.param(version, slot, marks=() if (version, slot) in QUICK else pytest.mark.soak)
    for version in (16, 18)
    for slot in SLOTS
]


@pytest.mark.parametrize(("version", "slot"), RUNS)
def test_scripts(servers: dict[Version, Server], version: Version, slot: str) -> None:
    for name, script in SCRIPTS.items():
        with twin_of(servers[version], options_of(version, slot)) as twin:
            play(twin, [*TABLES, *script])
            assert twin.sent, name
            assert_equal(twin)


BEGUN = len(TABLES)
RECONNECTED: dict[str, Script] = {
    "after a commit, and from before it": [*whole(insert(T, 2)), Reconnect(BEGUN), *whole(insert(T, 3))],
    "from after the commit": [*whole(insert(T, 2)), Reconnect(BEGUN + 3), *whole(insert(T, 3))],
    "in a transaction": [
        *(
            do.Begin(),
            insert(T, 2),
            ddl.AddColumn(T, "i3", INT4),
            insert(T, 3),
        ),
        *(
            Reconnect(BEGUN),
            insert(T, 4, i3="4"),
            do.Commit(),
            *whole(insert(T, 5)),
        ),
    ],
    "in a transaction, from the current position": [
        *(
            do.Begin(),
            insert(T, 2),
            do.Savepoint(),
            insert(T, 3),
            Reconnect(BEGUN + 4),
        ),
        *(
            insert(T, 4),
            do.Commit(),
            *whole(insert(T, 5)),
        ),
    ],
    "in a transaction without further changes": [
        *(
            do.Begin(),
            insert(T, 2),
            insert(U, 3),
            Reconnect(BEGUN + 3),
            do.Commit(),
            *whole(insert(T, 5)),
        )
    ],
    "from before a Prepare": [
        *(
            do.Begin(),
            insert(T, 2),
            do.PrepareTransaction("one"),
            Reconnect(BEGUN + 1),
        ),
        *(
            do.CommitPrepared("one"),
            *whole(insert(T, 3)),
        ),
    ],
    "from after a Prepare": [
        *(
            do.Begin(),
            insert(T, 2),
            do.PrepareTransaction("one"),
            Reconnect(BEGUN + 3),
        ),
        *(
            *whole(insert(T, 3)),
            do.CommitPrepared("one"),
            *whole(insert(T, 4)),
        ),
    ],
    "from after a Prepare that is rolled back": [
        *(
            do.Begin(),
            ddl.AddColumn(T, "i3", INT4),
            insert(T, 2),
            do.PrepareTransaction("one"),
            Reconnect(BEGUN + 4),
        ),
        *(
            *whole(insert(U, 3)),
            do.RollBackPrepared("one"),
            *whole(insert(T, 4)),
        ),
    ],
    "two-phase from now on, from before a Prepare": [
        *(
            do.Begin(),
            insert(T, 2),
            do.PrepareTransaction("one"),
            Reconnect(BEGUN + 1, two_phase=True),
        ),
        *(
            do.CommitPrepared("one"),
            *whole(insert(T, 3)),
        ),
    ],
    "two-phase from now on, from after a Prepare": [
        *(
            do.Begin(),
            insert(T, 2),
            ddl.AddColumn(T, "i3", INT4),
            insert(T, 3),
            do.PrepareTransaction("one"),
        ),
        *(
            do.Begin(),
            insert(U, 4),
            do.PrepareTransaction("two"),
            Reconnect(BEGUN + 8, two_phase=True),
        ),
        *(
            *whole(insert(U, 5)),
            do.CommitPrepared("one"),
            do.RollBackPrepared("two"),
            *whole(insert(T, 6)),
        ),
    ],
    "two-phase from now on, from before a commit that was sent": [
        *(
            do.Begin(),
            insert(T, 2),
            do.PrepareTransaction("one"),
            do.CommitPrepared("one"),
        ),
        *(
            Reconnect(BEGUN + 1, two_phase=True),
            *whole(insert(T, 3)),
        ),
    ],
    "two-phase from now on, from between Prepare and a commit that was sent": [
        *(
            do.Begin(),
            insert(T, 2),
            do.PrepareTransaction("one"),
            do.CommitPrepared("one"),
        ),
        *(
            Reconnect(BEGUN + 3, two_phase=True),
            *whole(insert(T, 3)),
        ),
    ],
}


@pytest.mark.parametrize(("version", "slot"), RUNS)
def test_connections(servers: dict[Version, Server], version: Version, slot: str) -> None:
    for name, script in RECONNECTED.items():
        is_later = any(isinstance(entry, Reconnect) and entry.two_phase for entry in script)
        if is_later and SLOTS[slot][0] < 3:
            continue
        with twin_of(servers[version], options_of(version, slot, later=is_later)) as twin:
            play(twin, [*TABLES, *script])
            assert len(twin.sent) == 2, name
            assert_equal(twin)


SEEDS = [pytest.param(seed, marks=() if seed < 3 else pytest.mark.soak) for seed in range(300)]


@pytest.mark.parametrize("version", [16, 18])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_histories(servers: dict[Version, Server], version: Version, seed: int) -> None:
    chance = random.Random(seed)
    is_later = chance.random() < 0.3
    options = options_of(version, chance.choice(list(SLOTS)[2 if is_later else 0 :]), later=is_later)
    options = replace(options, for_tables=chance.random() < 0.5, publishes_origins=chance.random() < 0.8)
    workload = Workload(chance, new_server(options, first_xid=700), {"crash": 0})
    with twin_of(servers[version], options) as twin:
        for action in workload.run(chance.choice([30, 60])):
            twin.run(action)
            if chance.random() < 0.05:
                aborts = [record.lsn for record in twin.model.wal if isinstance(record, Abort)]
                # The server knows of later rollbacks, and may send those transactions in part or not at all.
                since = chance.randint(max(map(statement_at, aborts), default=0), twin.statements)
                twin.reconnect(max(since, 1), two_phase=is_later)
        assert_equal(twin)

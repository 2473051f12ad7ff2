"""Batches in the ledger, on delta-rs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pgoutput_etl.config.object_storage import StorageFolder
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.batches import LedgerBatches
from pgoutput_etl.ledger.claim_files import ClaimFiles
from pgoutput_etl.ledger.local_append import append_once
from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.store import Store
from pgoutput_etl.ledger.tables import FORMAT, RowRange
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity
from pgoutput_etl.targets.plan import APPLIED, CompleteSince, Since, TableState
from pgoutput_etl.transactions.assembly import NOTHING_OPEN

ROOT = TableState(
    oid=1,
    schema="public",
    table="root",
    path=Place("/public/root"),
    version=0,
    last_commit_lsn=100,
    status=APPLIED,
    reason=None,
    relation=Relation(None, 1, "public", "root", ReplicaIdentity.DEFAULT, ()),
    key=(),
)


class LocalStore(Store):
    """Remembers from which batch on each table was read."""

    def __init__(self, root: Path) -> None:
        super().__init__("shop")
        self.reader = LedgerReader(StorageFolder(str(root)), "shop")
        self.reads: list[tuple[str, int]] = []

    @property
    def is_local(self) -> bool:
        return True

    def columns_where(self, table: str, names: Sequence[str], chosen: RowRange) -> pa.Table:
        self.reads.append((table, chosen.first))
        return self.reader.columns_where(table, names, chosen)

    def append_table(self, table: str, rows: pa.Table, batch: int, step: str = "") -> None:
        assert append_once(self.reader.url(table), rows, self.application(table, step), batch)

    def claim_files(self, report: Callable[[str], None] = lambda _: None) -> ClaimFiles | None:  # noqa: ARG002
        return None  # local storage needs none


def _apply(batches: LedgerBatches, batch: Batch) -> None:
    batches.begin(batch)
    batches.finish(batch, 100 * batch.number, dict(NOTHING_OPEN), [])


def _ledger_of(store: Store, nights: int) -> Batch:
    batches = LedgerBatches(store)
    for _ in range(nights):
        _apply(batches, Batch.after(batches.last(), {}))
    last = batches.last()
    assert last is not None
    return last


def test_a_run_reads_all_batches_only_once(tmp_path: Path) -> None:
    """Each batch has files of its own, of which a ledger of years has thousands."""
    store = LocalStore(tmp_path)
    last = _ledger_of(store, 5)
    batches, batch = LedgerBatches(store), Batch.after(last, {})
    store.reads.clear()

    with batches.claimed(last, batch, lambda _: None):
        _apply(batches, batch)
    following = batches.last_after(batch)

    assert (following.number, following.resumed, following.last_commit_lsn) == (6, False, 600)
    assert min(first for table, first in store.reads if table == "batches") >= last.number - 1


@pytest.mark.parametrize("is_done", [False, True])
def test_a_batch_of_another_run_is_noticed(tmp_path: Path, is_done: bool) -> None:
    store = LocalStore(tmp_path)
    last = _ledger_of(store, 3)
    batches, mine = LedgerBatches(store), Batch.after(last, {})
    other = replace(mine, ledger_id=mine.ledger_id)
    batches.begin(other)
    if is_done:
        batches.finish(other, 400, dict(NOTHING_OPEN), [])

    with pytest.raises(RunError, match="another run has just finished"), batches.claimed(last, mine, lambda _: None):
        pytest.fail("the claim was not refused")


def test_a_batch_to_finish_is_the_last_one(tmp_path: Path) -> None:
    """Also if it is known, and only the rows from the batch before it are read."""
    store = LocalStore(tmp_path)
    batches, last = LedgerBatches(store), _ledger_of(store, 2)
    batches.begin(Batch.after(last, {}))

    everything, known = batches.last(), batches.last(3)

    assert everything is not None
    assert (everything.number, everything.resumed, everything.last_commit_lsn) == (3, True, 200)
    assert known == everything


def test_a_ledger_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    _ledger_of(store, 2)
    assert {row["format"] for row in store.rows("batches", ("format",))} == {FORMAT}
    with monkeypatch.context() as patched:
        patched.setattr("pgoutput_etl.ledger.batches.FORMAT", FORMAT + 1)
        batches = LedgerBatches(store)
        batches.begin(Batch.after(batches.last(), {}))
    with pytest.raises(RunError, match=f"the ledger has format {FORMAT + 1}, and this version .* up to {FORMAT}: run"):
        LedgerBatches(store).last()


def test_a_version_that_knows_no_attached_partitions_refuses_their_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the format's number, before it parses the states of tables."""
    batches = LedgerBatches(LocalStore(tmp_path))
    batch = Batch.after(None, {})
    batches.begin(batch)
    since = CompleteSince(Since.ATTACHMENT, 100)
    root = replace(ROOT, complete_since=since)
    batches.finish(batch, 100, dict(NOTHING_OPEN), [root])
    last = batches.last()
    assert last is not None
    assert last.tables[1].complete_since == since
    monkeypatch.setattr("pgoutput_etl.ledger.tables.FORMAT", 2)
    monkeypatch.setattr("pgoutput_etl.ledger.batches.table_state", lambda _: pytest.fail("it parsed a state"))
    with pytest.raises(RunError, match=rf"the ledger has format {FORMAT}, and this version .* up to 2: run"):
        batches.last()


def test_tables_that_only_landed_files_have_changed_since_a_batch(tmp_path: Path) -> None:
    batches = LedgerBatches(LocalStore(tmp_path))
    for work, versions in ((None, (0, 0)), (None, (1, 0)), ("{}", (1, 1)), (None, (2, 1))):
        batch = Batch.after(batches.last(), {}).with_order("{}", work)
        batches.begin(batch)
        states = [replace(ROOT, oid=oid, version=version) for oid, version in enumerate(versions)]
        batches.finish(batch, 100 * batch.number, dict(NOTHING_OPEN), states)
    left = batches.states_left({0: 2, 1: 2, 2: 2})
    assert {oid: (state.version, state.last_commit_lsn) for oid, state in left.items()} == {0: (1, 200)}
    assert {oid: state.version for oid, state in batches.states_left({0: 4, 1: 3}).items()} == {0: 2, 1: 1}

"""Faults planted in the protocol, which the simulation must find: an effect out of order, or a check left out."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest import landed_files
from pgoutput_etl.ingest.landed_files import read_files
from pgoutput_etl.ledger import claims
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batches import LedgerBatches, LedgerFiles
from pgoutput_etl.ledger.claims import Claims, HeldClaim
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.ledger.transactions import LedgerTransactions, PendingTransactions
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.protocol.catalog_message import CatalogMessage, MessagePlace
from pgoutput_etl.schema.definitions import Definitions
from pgoutput_etl.targets import planner
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.transactions.catalog_numbers import CatalogNumber, CatalogNumbers
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.work.backfill import run as backfill
from pgoutput_etl.work.batch import Nothing, run
from pgoutput_etl.work.erasure import erase as erasure
from pgoutput_etl.work.erasure import landing as erased_files
from pgoutput_etl.work.erasure.pending import PendingErasures
from pgoutput_etl.work.files import batch_plan, pipeline
from pgoutput_etl.work.files.backlog import find_backlog
from pgoutput_etl.work.files.pipeline import PreparedFiles
from pgoutput_etl.work.kinds.in_place import InPlaceBackfill
from pgoutput_etl.work.kinds.snapshot_load import SnapshotLoad
from pgoutput_etl.work.upkeep import run as maintenance
from pgoutput_etl.work.upkeep.retention import RetentionRule
from pgoutput_etl.work.upkeep.run import _Maintenance
from tests.simulation import jobs
from tests.simulation.archive import SimRows
from tests.simulation.erasure import SimErasure
from tests.simulation.ledger import SimPending
from tests.simulation.targets import SimTargets


def _nothing(*_: Any, **__: Any) -> None: ...


def _tables_before_the_batch() -> Any:
    begin, waiting = LedgerBatches.begin, dict[int, Callable[[], None]]()

    def later(self: LedgerBatches, batch: Any) -> None:
        waiting[id(self)] = partial(begin, self, batch)

    write = Writer.write

    def write_first(self: Writer, plan: Any, changes: Any) -> Any:
        results = write(self, plan, changes)
        for begun in [waiting.pop(key) for key in list(waiting)]:
            begun()
        return results

    return patch.object(LedgerBatches, "begin", later), patch.object(Writer, "write", write_first)


def _new_files_in_an_interrupted_batch() -> Any:
    def finish(world: Any, watch: Any, backlog: Any, batch: Any) -> Any:  # noqa: ARG001
        files = landed_files.new_files(backlog.index, backlog.listing)
        read = partial(read_files, world.landing, files, backlog.index, backlog.listing)
        return list(pipeline._apply_files(world, watch, backlog, read))

    return patch.object(pipeline, "_finish_interrupted", finish)


def _done_before_its_files() -> Any:
    append, finish = LedgerFiles.append, LedgerBatches.finish
    late: list[Callable[[], None]] = []

    def later(self: LedgerFiles, batch: Any, result: Any) -> None:
        late.append(partial(append, self, batch, result))

    def finish_first(self: LedgerBatches, *arguments: Any) -> None:
        files = [late.pop() for _ in range(len(late))]
        finish(self, *arguments)
        for write in files:
            write()

    return patch.object(LedgerFiles, "append", later), patch.object(LedgerBatches, "finish", finish_first)


def _open_rows_deleted_first() -> Any:
    close = Ledger.close

    def delete_and_close(self: Ledger, batch: Any, results: Any, metrics: Any = None) -> None:
        self.pending.delete_closed(results.prior.open_fragments, results.rows.assembly)
        close(self, batch, results, metrics)

    return patch.object(Ledger, "close", delete_and_close)


def _everything_deleted_as_ended() -> Any:
    """By a run that, in addition, does not look once more whether another is alive."""
    confirm = HeldClaim.confirm

    def confirm_alone(self: HeldClaim) -> None:
        confirm(self)

    def delete(self: PendingTransactions, assembly: Any, last: Any) -> None:  # noqa: ARG001
        rows = self.store.rows("open_transactions", ("file", "unit"))
        self.delete_closed({(row["file"], row["unit"]) for row in rows}, assembly)

    def hold(world: Any, watch: Any) -> Any:
        backlog = find_backlog(world, watch.progress)
        last, claim = backlog.last, backlog.claim
        if last is None or last.resumed or claim is None or claim.status == "released":
            return backlog
        with world.ledger.batches.claims().held(last.number + 1, watch.progress, claim):
            world.ledger.delete_ended(last)
        return backlog.after(last)

    looks = patch.object(HeldClaim, "confirm", confirm_alone)
    return patch.object(SimPending, "delete_ended", delete), patch.object(pipeline, "_find_backlog", hold), looks


def _done_before_the_tables() -> Any:
    """They are written once the batch is done, which names no version of them."""
    write, late = PreparedFiles.write, list[Callable[[], Any]]()
    close = Ledger.close

    def writes_later(self: PreparedFiles) -> None:
        late.append(partial(write, self))
        self.results = []

    def closes(self: Ledger, batch: Any, results: Any, metrics: Any = None) -> None:
        close(self, batch, results, metrics)
        late.pop()()

    return patch.object(PreparedFiles, "write", writes_later), patch.object(Ledger, "close", closes)


def _no_look_at_the_ledger_after_the_claim() -> Any:
    @contextmanager
    def claimed(self: LedgerBatches, last: Any, batch: Any, progress: Any, claim: Any = None) -> Iterator[Any]:  # noqa: ARG001
        with self.claims(progress).held(batch.number, progress, claim) as check:
            yield check

    return patch.object(LedgerBatches, "claimed", claimed)


def _claims_nobody_reads() -> Any:
    return patch.object(Claims, "refuse_others", lambda *_: None), patch.object(HeldClaim, "confirm", _nothing)


def _backfill_done_before_its_tables() -> Any:
    """It names the versions from before, and the tables are written after it."""
    write, close = Rebuild.write, Ledger.close_backfill
    late: list[Callable[[], Any]] = []

    def writes_later(self: Rebuild, plan: Any, rows: Any) -> Any:
        late.append(partial(write, self, plan, rows))
        states = [self.tables[task.oid] for task in plan.tasks if task.oid in self.tables]
        summaries = [TableSummary(state.schema, state.table, str(state.path), state.version) for state in states]
        return [TableResult(state, summary) for state, summary in zip(states, summaries, strict=True)], []

    def closes(self: Ledger, *arguments: Any) -> None:
        close(self, *arguments)
        while late:
            late.pop()()

    return patch.object(Rebuild, "write", writes_later), patch.object(Ledger, "close_backfill", closes)


def _interrupted_count_as_done(kind: type[InPlaceBackfill | SnapshotLoad]) -> Any:
    plan: Any = kind.prepare

    @contextmanager
    def prepare(self: Any, batch: Any, check_claim: Any) -> Iterator[Any]:
        if not batch.resumed:
            with plan(self, batch, check_claim) as prepared:
                yield prepared
        else:
            self.archive.ledger.close_backfill(batch, {}, [], [])
            yield Nothing(None)

    return patch.object(kind, "prepare", prepare)


def _staged_rows_discarded_first() -> Any:
    close = SnapshotLoad.close

    def discard_and_close(self: SnapshotLoad) -> None:
        self.archive.discard(self.order.staged)
        close(self)

    return patch.object(SnapshotLoad, "close", discard_and_close)


def _snapshots_lose_later_commits() -> Any:
    return patch.object(SimRows, "plus", lambda self, _: self)


def _no_look_at_the_ledger_by_a_backfill() -> Any:
    """Each process has a ledger of its own, whose part can be replaced."""

    def unconfirmed(ledger: Any, work: Any, before: Any, watch: Any) -> Any:
        last, claimed = ledger.batches.last(), ledger.batches.claimed
        if not last.resumed:
            before = replace(before, number=last.number)
            ledger.batches = replace(ledger.batches, watch=lambda _: lambda _, *arguments: claimed(last, *arguments))
        return run(ledger, work, before, watch)

    return patch.object(backfill, "run", unconfirmed)


def _repairs_of_tables_that_keep_the_past() -> Any:
    reason_of = InPlaceBackfill._rebuild_reason

    def reason(self: InPlaceBackfill, oid: int) -> str | None:
        found = reason_of(self, oid)
        has_other_mode = found is not None and found.startswith("mode ") and bool(self.batch.tables[oid].key)
        return None if has_other_mode else found

    return patch.object(InPlaceBackfill, "_rebuild_reason", reason)


def _truncates_forget_the_past() -> Any:
    return patch.object(planner, "table_mode", lambda mode: replace(table_mode(mode), is_copy=True))


def _only_changes_within_the_range() -> Any:
    archived_changes = SimTargets.archived_changes

    def within(self: SimTargets, rows: Any, commits: Any = None) -> Any:
        if commits is not None:
            rows = replace(rows, commits=CommitRange(rows.commits.first, min(rows.commits.last, commits[1])))
        return archived_changes(self, rows, commits)

    return patch.object(SimTargets, "archived_changes", within)


def _vacuum_before_the_versions_are_recorded() -> Any:
    compact = _Maintenance._compact_target

    def compact_and_vacuum(self: _Maintenance, state: Any) -> Any:
        done = compact(self, state)
        self.upkeep.table(state.path).vacuum(self.request.keep_days * 24)
        return done

    return patch.object(_Maintenance, "_compact_target", compact_and_vacuum)


def _interrupted_batches_do_not_stop_maintenance() -> Any:
    def why(ledger: Any, last: Any) -> Any:
        try:
            ledger.batches.claims().refuse_others(last.number + 1)
        except RunError as error:
            return str(error)
        return None

    return patch.object(maintenance, "_why_targets_are_skipped", why)


def _maintenance_claims_nothing() -> Any:
    maintain = maintenance.maintain_tables

    @contextmanager
    def unclaimed(*_: Any) -> Iterator[Callable[[], None]]:
        yield lambda: None

    def without_a_claim(upkeep: Any, ledger: Any, *arguments: Any) -> Any:
        ledger.batches = replace(ledger.batches, watch=lambda _: unclaimed)
        return maintain(upkeep, ledger, *arguments)

    why = patch.object(maintenance, "_why_targets_are_skipped", lambda _, last: "a batch" if last.resumed else None)
    return patch.object(jobs, "maintain_tables", without_a_claim), why


def _claims_that_count_are_deleted() -> Any:
    def rules(last: int, *_: Any) -> tuple[RetentionRule, ...]:
        return (RetentionRule("claims", "batch", last + 2),)

    return patch.object(maintenance, "retention_rules", rules)


def _rolled_back_definitions_count() -> Any:
    end = Definitions.end

    def count(self: Definitions, xid: int, _: bool, commit_lsn: int | None, *arguments: Any) -> None:
        end(self, xid, True, commit_lsn or 1 << 60, *arguments)

    return patch.object(Definitions, "end", count)


def _messages_count_in_any_order() -> Any:
    check = CatalogMessage.check_is_original

    def without_order(self: CatalogMessage, place: MessagePlace) -> None:
        check(self, replace(place, last_number=-1))

    return patch.object(CatalogMessage, "check_is_original", without_order)


def _smaller_numbers_count_as_sent_again() -> Any:
    follows = CatalogNumbers.follows

    def by_number(self: CatalogNumbers, sent: CatalogNumber, commit_lsn: int) -> bool:
        return sent.number <= self.last[1] or follows(self, sent, commit_lsn)

    return patch.object(CatalogNumbers, "follows", by_number)


MUTATIONS: dict[str, Callable[[], Any]] = {
    "a batch is not recorded before its tables are written": lambda: patch.object(LedgerBatches, "begin", _nothing),
    "a batch is recorded after its tables are written": _tables_before_the_batch,
    "a batch is done before its files are recorded": _done_before_its_files,
    "a batch is done before its tables are written": _done_before_the_tables,
    "an interrupted batch is finished with the files that are new now": _new_files_in_an_interrupted_batch,
    "rows of open transactions are deleted before the batch is done": _open_rows_deleted_first,
    "rows of open transactions are deleted by a run that looks at an older batch": _everything_deleted_as_ended,
    "no run reads the claims": _claims_nobody_reads,
    "the date of a claim tells that its run is dead": lambda: patch.object(claims, "CLOCKS_DIFFER", claims.LEASE),
    "a run does not look at the ledger once it has the claim": _no_look_at_the_ledger_after_the_claim,
    "files that were renamed during the scan are applied": lambda: patch.object(
        landed_files, "refuse_renamed", _nothing
    ),
    "a run does not check its claim before it writes": lambda: patch.object(HeldClaim, "check", _nothing),
    "a backfill is done before its tables are written": _backfill_done_before_its_tables,
    "an interrupted backfill counts as done": lambda: _interrupted_count_as_done(InPlaceBackfill),
    "a backfill does not look at the ledger once it has the claim": _no_look_at_the_ledger_by_a_backfill,
    "a backfill reads files under the names that they had": lambda: patch.object(
        LedgerArchive, "_moved", lambda *_: {}
    ),
    "the repair of a range of commits applies only their changes": _only_changes_within_the_range,
    "a range of commits is repaired in a table that keeps the past": _repairs_of_tables_that_keep_the_past,
    "a truncate removes the past from a table that keeps it": _truncates_forget_the_past,
    "waiting changes are not masked again": lambda: patch.object(batch_plan, "_is_masked_alike", lambda *_: True),
    "tables keep rows that were masked in another way": lambda: patch.object(planner, "other_masks", _nothing),
    "an erasure does not record the files that it rewrites": lambda: patch.object(erased_files, "_record", _nothing),
    "an erasure is done before its files are rewritten": lambda: patch.object(erasure, "rewrite", _nothing),
    "an erasure leaves what a clock ahead has dated": lambda: patch.object(SimErasure, "older_files", lambda *_: 0),
    "what an erasure has found is not kept": lambda: patch.object(PendingErasures, "keep", _nothing),
    "a snapshot's staged rows are discarded before its batch is done": _staged_rows_discarded_first,
    "an interrupted snapshot counts as done": lambda: _interrupted_count_as_done(SnapshotLoad),
    "a snapshot is loaded without the commits after it": _snapshots_lose_later_commits,
    "VACUUM runs before the new versions are recorded": _vacuum_before_the_versions_are_recorded,
    "maintenance continues although a batch was interrupted": _interrupted_batches_do_not_stop_maintenance,
    "maintenance claims nothing": _maintenance_claims_nothing,
    "maintenance records what another program has written": lambda: patch.object(
        maintenance, "is_as_recorded", lambda _: True
    ),
    "claims that count are deleted": _claims_that_count_are_deleted,
    "old transactions are deleted without a record": lambda: patch.object(
        LedgerTransactions, "record_trimmed", _nothing
    ),
    "the digests of catalog Messages are not checked": lambda: patch.object(hmac, "compare_digest", lambda *_: True),
    "a copied catalog Message counts": lambda: patch.object(CatalogMessage, "check_is_original", _nothing),
    "catalog Messages of a transaction count in any order": _messages_count_in_any_order,
    "catalog Messages out of order count as sent again": _smaller_numbers_count_as_sent_again,
    "a lost catalog Message goes unnoticed": lambda: patch.object(CatalogNumbers, "follows", lambda *_: True),
    "a rolled back definition counts": _rolled_back_definitions_count,
}

"""Batches in the ledger: how they begin, are claimed, and finish; the state that each one left; and the files that it
read."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any

from pgoutput_etl.errors import AnotherRunError
from pgoutput_etl.landing.file_index import INDEX_SCHEMA, FileIndex
from pgoutput_etl.landing.fingerprint import FilePart
from pgoutput_etl.ledger.batch import Batch, BatchResult
from pgoutput_etl.ledger.claims import CLAIM_COLUMNS, CLAIMED, Claim, Claims, just_finished
from pgoutput_etl.ledger.store import Store
from pgoutput_etl.ledger.tables import FORMAT, check_format, erasure_of, file_statistics, table_row, table_state
from pgoutput_etl.machine import now
from pgoutput_etl.places import Place
from pgoutput_etl.targets.plan import Since, TableState
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS, time_of
from pgoutput_etl.transactions.outcome import ACCOUNTS

_BATCH = (
    *("batch", "status", "ledger_id", "files", "last_commit_lsn", "state", "tables"),
    *("backfill", "since", "settings", "format"),
)

# The step that appends a batch's first row. Only one run's row is accepted, even if clocks differ so much that a second
# run doesn't respect the first one's claim.
_FIRST = "begun"


@dataclass(frozen=True, slots=True)
class StatesAt:
    """The tables as of the last batch up to a commit.

    lsn: the commit at which the batch ended; 0 without a batch. states: by OID, each with its last commit. If a
    snapshot had already advanced a table beyond `lsn`, its last state before that, if any. erased: OIDs of tables whose
    versions from that time are gone, because a later batch erased rows.
    """

    lsn: int
    states: Mapping[int, TableState]
    erased: frozenset[int]


@dataclass(frozen=True, slots=True)
class LedgerBatches:
    store: Store

    def _numbers(self, known: int = 0) -> tuple[int, int] | None:
        """The numbers of the newest batch and of the newest finished one (0 if none is finished). None before the first
        batch.

        known: a batch that exists. Reads only the rows of later batches, of this one, and of the one before, which may
        be the newest finished batch. This saves reading files, because until maintenance compacts them, each batch's
        rows are in separate files.
        """
        batches = self.store.rows("batches", ("batch", "status"), max(known - 1, 0))
        if not batches:
            return None
        done = [row["batch"] for row in batches if row["status"] == "done"]
        return max(row["batch"] for row in batches), max(done, default=0)

    def _done(self, *names: str, first: int = 0, before: int | None = None) -> list[dict[str, Any]]:
        """The batch number and these columns of finished batches, in order. first, before: limits of the numbers."""
        rows = self.store.rows("batches", ("batch", "status", *names), first, before)
        return sorted((row for row in rows if row["status"] == "done"), key=lambda row: int(row["batch"]))

    def last(self, known: int = 0) -> Batch | None:
        """The unfinished batch, if any, otherwise the last finished one; None before the first batch. known: as in
        `_numbers`. Raises RunError if a newer version wrote the ledger."""
        numbers = self._numbers(known)
        if numbers is None:
            return None
        newest, last_done = numbers
        rows = {(row["batch"], row["status"]): row for row in self.store.rows("batches", _BATCH, last_done)}
        nothing: dict[str, Any] = {"state": None, "tables": [], "last_commit_lsn": 0, "since": 0}
        done = rows.get((last_done, "done"), nothing)
        row = rows[newest, "done" if newest == last_done else "begun"]
        check_format(row)
        parts = ({**file} for file in row["files"] or ())
        files = {part.pop("file"): FilePart(**part) for part in parts}
        tables = {t["oid"]: self._state(t) for t in done["tables"] or []}
        state = None if done["state"] is None else json.loads(done["state"])
        lsn = done["last_commit_lsn"]
        resumed, since = newest != last_done, done["since"] or 0
        of_batch = (row["backfill"], since, row["settings"])
        return Batch(row["ledger_id"], newest, files, resumed, state, tables, lsn, *of_batch)

    def last_after(self, batch: Batch) -> Batch:
        """The finished batch, as input for the run's next batch. Raises RunError if another run came in between."""
        last = self.last(batch.number)
        if last is None or (last.ledger_id, last.number, last.resumed) != (batch.ledger_id, batch.number, False):
            raise AnotherRunError(
                f"another run has continued after batch {batch.number}; this run changes nothing more. Run again"
            )
        return last

    def state_at(self, oid: int, version: int) -> TableState | None:
        """A table's state after the last batch that left it at this Delta version."""

        batches = sorted(self.store.rows("batches", ("batch", "tables")), key=lambda row: row["batch"])
        tables = [table for row in batches for table in row["tables"] or ()]
        states = [table for table in tables if (table["oid"], table["version"]) == (oid, version)]
        return self._state(states[-1]) if states else None

    def states_after(self, batch: int) -> dict[int, TableState]:
        """Table states by OID, after a finished batch."""
        [done] = self._done("tables", first=batch, before=batch + 1)
        return {table["oid"]: self._state(table) for table in done["tables"]}

    def states_left(self, batches: Mapping[int, int]) -> dict[int, TableState]:
        """Tables as a batch left them, with its last commit. Excludes tables that work other than applying files has
        changed since. batches: by OID."""
        states: dict[int, TableState] = {}
        versions: dict[int, int] = {}
        for row in self._done("last_commit_lsn", "tables", "backfill"):
            for table in row["tables"] or ():
                oid, version = table["oid"], table["version"]
                if row["batch"] == batches.get(oid):
                    states[oid] = replace(self._state(table), last_commit_lsn=row["last_commit_lsn"])
                elif row["backfill"] is not None and versions.get(oid) != version:
                    states.pop(oid, None)
                versions[oid] = version
        return states

    def states_at(self, lsn: int) -> StatesAt:
        """The tables as of the last batch up to a commit."""
        rows = self._done("last_commit_lsn", "tables", "backfill")
        erasures = _erasures(rows)
        done = [row for row in reversed(rows) if row["last_commit_lsn"] <= lsn]
        states: dict[int, TableState] = {}
        erased: set[int] = set()
        for row in done:
            tables = {table["oid"]: table for table in row["tables"] or ()}
            for oid in tables.keys() if row is done[0] else tables.keys() - states.keys():
                state = self._state(tables[oid])
                if erasures.get(str(state.path.table), 0) > row["batch"]:
                    erased.add(oid)
                elif state.last_commit_lsn <= lsn:
                    reached = max(state.last_commit_lsn, row["last_commit_lsn"])
                    states[oid] = replace(state, last_commit_lsn=reached) if state.is_complete else state
        return StatesAt(done[0]["last_commit_lsn"] if done else 0, states, frozenset(erased - states.keys()))

    def places(self, oids: Collection[int]) -> set[Place]:
        """All places of these tables after finished batches."""
        states = (state for state in self._all_states() if state["oid"] in oids)
        return {
            Place.parse(self.store.place(state["path"])) for state in states if state["path"] and state["version"] >= 0
        }

    def snapshots_of(self, oid: int) -> set[int]:
        """The LSNs of the snapshots that the table was loaded from."""
        known = (self._state(state).complete_since for state in self._all_states() if state["oid"] == oid)
        return {since.lsn for since in known if since is not None and since.kind is Since.SNAPSHOT}

    def _state(self, row: Mapping[str, Any]) -> TableState:
        return table_state({**row, "path": self.store.place(row["path"])})

    def _all_states(self) -> Iterator[Mapping[str, Any]]:
        """The table states after every batch, in their stored form."""
        return (table for row in self.store.rows("batches", ("tables",)) for table in row["tables"] or ())

    def ends(self) -> list[int]:
        """The commits at which finished batches ended, in order."""
        return sorted({row["last_commit_lsn"] for row in self._done("last_commit_lsn")})

    def known_tables(self) -> list[tuple[int, frozenset[int]]]:
        """For each snapshot of a server that publishes new tables automatically: its LSN and the OIDs of all tables."""
        return [(s["lsn"], frozenset(s["known"])) for s in self._snapshots() if s.get("known") is not None]

    def unfinished_load(self, tables: Sequence[str]) -> int | None:
        """The LSN of the first batch of the last load, if that load has the same table patterns and more batches to
        come."""
        loads = [s for s in self._snapshots() if s.get("repairs") is None]
        load = loads[-1].get("unfinished") if loads else None
        return int(load["since"]) if load and tuple(load["tables"]) == tuple(tables) else None

    def _snapshots(self) -> list[dict[str, Any]]:
        """The orders of snapshots, oldest first."""
        orders = [json.loads(row["backfill"]) for row in self._done("backfill") if row["backfill"]]
        return [order["snapshot"] for order in orders if order.get("snapshot")]

    def done_at(self, first: int = 0) -> list[tuple[int, datetime]]:
        """The number of each finished batch, and its finish time."""
        return [(row["batch"], row["at"].replace(tzinfo=timezone.utc)) for row in self._done("at", first=first)]

    def claims(self, progress: Callable[[str], None] = lambda _: None) -> Claims:
        """The claims on a batch and its neighbors: another run may still hold the previous batch, or already the
        next."""
        store = self.store
        files = store.claim_files(progress)

        def read(batch: int) -> list[dict[str, Any]]:
            rows = store.rows("claims", CLAIM_COLUMNS, batch - 1, batch + 2)
            return rows if files is None else rows + files.read(batch)

        def append(row: Mapping[str, Any], batch: int, name: str) -> None:
            if files is not None and row["status"] == CLAIMED and not files.make({**row, "batch": batch}):
                return
            try:
                store.append_rows("claims", [dict(row)], batch, name)
            finally:  # the claim's file is released last, because nothing may be written after it
                if files is not None and row["status"] != CLAIMED:
                    files.renew({**row, "batch": batch})

        return Claims(read, append, store.machine)

    @contextmanager
    def claimed(
        self, last: Batch | None, batch: Batch, progress: Callable[[str], None], claim: Claim | None = None
    ) -> Iterator[Callable[[], None]]:
        """Claims `batch` and yields a function that checks the claim.

        last, claim: the newest batch and claim (None if unknown) at the time when the batch was prepared. Raises
        RunError if another run has added to the ledger since.
        """

        def confirm() -> None:
            numbers = self._numbers(last.number if last else 0)
            newest = None if numbers is None else (numbers[0], numbers[0] != numbers[1])
            if (last and (last.number, last.resumed)) != newest:
                raise just_finished()

        with (
            self.store.private_folders(),
            self.claims(progress).held(batch.number, progress, claim, confirm) as check,
        ):
            yield check

    def begin(self, batch: Batch) -> None:
        """Records a batch before anything else of it is written. A resumed batch is already recorded.

        Raises RunError if another run has begun the batch with other files, or has ended one that isn't recorded before
        its end: both runs would use the same transaction identifiers, and Delta would silently skip the second run's
        commits.
        """
        if batch.resumed:
            return
        files = [{"file": number, **asdict(file)} for number, file in batch.files.items()]
        row = {"ledger_id": batch.ledger_id, "status": "begun", "at": now(self.store.machine), "files": files}
        row |= {"backfill": batch.work, "settings": batch.settings, "format": FORMAT}
        self.store.append_rows("batches", [row], batch.number, _FIRST)
        names = ("status", "ledger_id", "files", "backfill")
        if {name: row[name] for name in names} not in self.store.rows("batches", names, batch.number, batch.number + 1):
            raise _begun_by_another(batch)

    def finish(
        self,
        batch: Batch,
        last_commit_lsn: int,
        state: dict[str, Any] | None,
        tables: Iterable[TableState],
        metrics: Mapping[str, Any] | None = None,
        has_begun: bool = True,
    ) -> Batch:
        """Records that a batch is finished, and returns it. metrics: as in `Ledger.close`. has_begun: the batch's
        beginning is recorded. Otherwise, raises RunError if another run has a batch with this number."""
        states = {table.oid: table for table in tables}
        row = {"ledger_id": batch.ledger_id, "status": "done", "at": now(self.store.machine)}
        row |= {"last_commit_lsn": last_commit_lsn, "state": json.dumps(state), "backfill": batch.work}
        row |= {"tables": [table_row(table) for table in states.values()], "since": batch.since, "format": FORMAT}
        row |= {"metrics": None if metrics is None else json.dumps(metrics)}
        self.store.append_rows("batches", [row], batch.number, "done" if has_begun else _FIRST)
        if not has_begun and (batch.number, row["at"]) not in self.done_at(batch.number):
            raise _begun_by_another(batch)
        return replace(batch, resumed=False, state=state, tables=states, last_commit_lsn=last_commit_lsn)


def _begun_by_another(batch: Batch) -> AnotherRunError:
    return AnotherRunError(
        f"another run has already begun batch {batch.number}; this run changes nothing more. Run again"
    )


def _erasures(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """By place, the last batch that removed older versions in order to erase rows. rows: of finished batches, in
    order."""
    orders = ((row["batch"], erasure_of(row["backfill"])) for row in rows)
    return {place: batch for batch, order in orders if order is not None for place in order["places"]}


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """Files that were read."""

    store: Store

    def append(self, batch: Batch, result: BatchResult) -> None:
        marks: dict[int, list[dict[str, int]]] = {}
        for mark in result.rows.assembly.watermarks:
            marks.setdefault(mark.file, []).append({"stretch": mark.epoch, "lsn": mark.lsn})
        rows = []
        for number, file in batch.files.items():
            row = {"file": number, **asdict(file), "modified": time_of(file.modified - POSTGRES_EPOCH_MICROSECONDS)}
            row |= {name: result.accounts.get(number, {}).get(name, 0) for name in ACCOUNTS.values()}
            if number in result.scans:
                row |= file_statistics(result.scans[number]) | {"watermarks": marks.get(number, [])}
            rows.append(row)
        self.store.append_rows("files", rows, batch.number)

    def path_of(self, batch: Batch, number: int) -> str:
        """The path of a file of this batch, or of an earlier batch whose transactions were still open."""
        if number in batch.files:
            return batch.files[number].path
        rows = self.store.rows_before("files", ("file", "path"), batch)
        return next((row["path"] for row in rows if row["file"] == number), f"file {number}")

    def index(self, batch: Batch | None, before: int | None = None) -> FileIndex:
        """All file parts that batches from `batch.since` on have read; with `before`, only those of batches with a
        lower number.

        Columns that an older ledger doesn't have are NULL.
        """
        since = 0 if batch is None else batch.since
        return FileIndex.of_columns(self.store.columns("files", INDEX_SCHEMA.names, since, before))

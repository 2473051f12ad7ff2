"""The promises of docs/guarantees.md, checked after every step of a simulated history."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pgoutput_etl.compression import decompress
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.ledger.as_of import tables_in
from pgoutput_etl.ledger.claims import LEASE, RENEWAL
from pgoutput_etl.ledger.tables import catalog_entry, erasure_of, relation_of
from pgoutput_etl.schema.definitions import Definitions
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.transactions.outcome import ACCOUNTS
from pgoutput_etl.work.erasure.ledger_rows import COPIED
from pgoutput_etl.work.erasure.order import ErasureOrder
from pgoutput_etl.work.erasure.request import Erasure
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder
from pgoutput_etl.work.kinds.snapshot_order import SnapshotOrder
from tests.simulation.archives import Archive, message_texts
from tests.simulation.erasure import erased_frames, is_erased
from tests.simulation.landing import Receiver
from tests.simulation.ledger import ROOT, Chunk
from tests.simulation.masks import SECRET, mask_of
from tests.simulation.modes import RETIRED, Rows
from tests.simulation.scheduler import Scheduler, SimProcess
from tests.simulation.storage import Storage
from tests.simulation.targets import Content

# A run that is not heard of for this long reads the ledger before it writes (HeldClaim.check).
UNCHECKED = LEASE - RENEWAL / 2


class BrokenPromiseError(AssertionError):
    """A promise that was broken."""


@dataclass(slots=True)
class Holders:
    """Which runs hold the source's claim, and when they first checked it. slack: seconds for which two may, as far as
    clocks differ."""

    scheduler: Scheduler
    slack: float
    since: dict[SimProcess, float] = field(default_factory=dict)

    def watched(self, process: SimProcess, claimed: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
        """`Ledger.claimed`, with checks that know the other holders."""

        @contextmanager
        def watched_claim(*arguments: Any) -> Iterator[Callable[[], None]]:
            with claimed(*arguments) as check:

                def watched_check() -> None:
                    began = self.scheduler.now
                    check()
                    self.since.setdefault(process, self.scheduler.now)
                    self._refuse_second(process, began)

                try:
                    yield watched_check
                finally:
                    self.since.pop(process, None)

        return watched_claim

    def _refuse_second(self, process: SimProcess, began: float) -> None:
        """A run may write after this check. So no other run may have taken over before it began."""
        own = self.since[process]
        for other, since in self.since.items():
            if not other.is_dead and other is not process and own < since and since + self.slack < began:
                seconds = began - since
                raise BrokenPromiseError(f"{process.name} may write {seconds:.0f} s after {other.name} has taken over")


@dataclass(slots=True)
class Promises:
    """done: the last finished batch that was checked; newest: its row in the ledger. is_interrupted: a later batch was
    begun. tables: contents that were found right, by path and version. at_begin: the versions of all tables when each
    batch began, by path. removed: OIDs of displaced tables that maintenance removed; they return without their earlier
    rows. request: for an erasure. erasures: the archive's first messages, as each batch that erases leaves them.
    forgotten: OIDs of the tables with erased rows."""

    storage: Storage
    archive: Archive
    receiver: Receiver
    checked: tuple[int, int] = (-1, 0)
    changes: int = 0
    done: int = 0
    newest: dict[str, Any] | None = None
    is_interrupted: bool = False
    tables: dict[tuple[str, int], Content] = field(default_factory=dict)
    at_begin: dict[int, dict[str, int]] = field(default_factory=dict)
    removed: set[int] = field(default_factory=set)
    loaded: dict[int, int] = field(default_factory=dict)
    request: Erasure | None = None
    erasures: dict[int, list[bytes]] = field(default_factory=dict)
    forgotten: set[int] = field(default_factory=set)

    @property
    def is_erasing(self) -> bool:
        """An erasure has begun, and is not done."""
        return max(self.erasures, default=0) > self.done

    def after_step(self) -> None:
        if self.storage.changes == self.changes:
            return
        self.changes = self.storage.changes
        stored = self.storage.table(f"{ROOT}/batches")
        now = (stored.version, stored.lost)
        if now != self.checked:
            self.done = 0 if now[1] != self.checked[1] else self.done
            self.checked = now
            self._check_batches()
        self._check_reader()

    def at_rest(self) -> None:
        """Everything landed was read, and everything that was repaired is right."""
        self.after_step()
        landed = len(self.archive.frames)
        if landed and self._reached() != landed:
            raise BrokenPromiseError(f"{self._reached()} of {landed} messages were read after everything was done")
        if self.archive.secret is not None:
            for path, table in self.storage.tables.items():
                for content in table.contents:
                    rows = content.rows if isinstance(content, Content) else [chunk.rows() for chunk in content or ()]
                    self.check_secrecy(path, repr(rows))

    def check_secrecy(self, place: str, text: str) -> None:
        """No value of a masked column is stored or printed."""
        if SECRET in text:
            raise BrokenPromiseError(f"{place} has a value of a masked column")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Of the ledger."""
        stored = self.storage.table(f"{ROOT}/{table}")
        chunks: list[Chunk] = stored.content(stored.version) if stored.version >= 0 else []
        return [row for chunk in chunks for row in chunk.rows()]

    def foreign_tables(self) -> list[str]:
        """Names of applied tables that have rows of another program."""
        expected = self.archive.expected(self._reached())
        names = []
        for state in () if self.newest is None else self.newest["tables"]:
            name = (state["schema"], state["table"])
            is_written = state["version"] >= 0 and not _is_displaced(state)
            is_wrong = is_written and self._newest_content(state["path"]).is_foreign
            if is_wrong and state["status"] == "applied" and expected.names.get(name) == state["oid"]:
                names.append(".".join(name))
        return names

    def _versions(self) -> dict[str, int]:
        paths = [state["path"] for state in (self.newest or {"tables": []})["tables"] if state["version"] >= 0]
        return {path: self.storage.table(path).version for path in paths}

    def _newest_content(self, path: str) -> Content:
        table = self.storage.table(path)
        content: Content = table.content(table.version)
        return content

    def _reached(self, batch: int | None = None) -> int:
        """The archive's messages in files up to a batch."""
        reached = 0
        for row in sorted(self.rows("files"), key=lambda row: (row["batch"], row["file"])):
            if batch is None or row["batch"] <= batch:
                reached = max(reached, self.receiver.sent_with(row["prefix_hash"], row["path"], reached))
        return reached

    def _check_batches(self) -> None:
        rows = self.rows("batches")
        done = {row["batch"]: row for row in rows if row["status"] == "done"}
        begun = {row["batch"]: row for row in rows if row["status"] == "begun"}
        if len(rows) != len(done) + len(begun):
            raise BrokenPromiseError(f"a batch is recorded twice: {sorted((r['batch'], r['status']) for r in rows)}")
        if sorted(done) != list(range(1, len(done) + 1)):
            raise BrokenPromiseError(f"batches {sorted(done)} are done")
        for number in begun.keys() - done.keys() - self.at_begin.keys():
            self.at_begin[number] = self._versions()
            if erasure_of(begun[number]["backfill"]) is not None:
                assert self.request is not None
                self.erasures[number] = erased_frames(self.archive.frames[: self._reached()], self.request)
                self.receiver.erase(self.erasures[number])
        for number in range(self.done + 1, len(done) + 1):
            self._check_batch(done[number], begun.get(number), done.get(number - 1))
        for number in begun.keys() - done.keys():
            snapshot = _snapshot_of(begun[number])
            if snapshot is not None and snapshot.staged not in self.storage.staged:
                raise BrokenPromiseError(f"batch {number} has begun, and its staged rows are gone")
        self.done = len(done)
        self.newest, self.is_interrupted = done.get(self.done), max(begun, default=0) > self.done

    def _check_batch(self, row: dict[str, Any], begun: dict[str, Any] | None, before: dict[str, Any] | None) -> None:
        number = row["batch"]
        files = [file for file in self.rows("files") if file["batch"] == number]
        work = None if begun is None else begun["backfill"]
        snapshot, order = _snapshot_of(begun), _backfill_of(begun)
        if number in self.erasures:
            self._check_erased(number, work or "")
        if begun is not None and (work is None or (order is not None and order.anew)):
            self._check_files(number, files, begun)
        elif files:
            raise BrokenPromiseError(f"batch {number} has files")
        if begun is None:
            self._check_same_rows(row, before)
        reached = self._reached(number)
        expected = self.archive.expected(reached)
        if snapshot is not None:
            self.loaded |= dict.fromkeys(snapshot.oids, snapshot.lsn)
            self.removed -= {*snapshot.oids}
        has_read = row["state"] not in (None, "null")
        lsn = expected.lsn if has_read else min(self.loaded.values(), default=1) - 1  # the snapshots' without files
        if row["last_commit_lsn"] != lsn:
            raise BrokenPromiseError(f"batch {number}: LSN {row['last_commit_lsn']}, expected {lsn}")
        messages = message_texts(m for m in self.rows("messages") if m["batch"] <= number)
        if messages != expected.messages:
            raise BrokenPromiseError(f"batch {number}: {len(messages)} Messages, expected {len(expected.messages)}")
        self._check_definitions(number, row["since"] or 0, reached)
        self._record_removed(row, before)
        states = {state["oid"]: state for state in row["tables"]}
        for oid in expected.tables.keys() | self.loaded.keys():
            state = states.get(oid)
            rows = self._rows_at(reached, oid, state)
            if rows is None or oid in self.removed:
                continue
            if state is None or state["status"] != "applied":
                raise BrokenPromiseError(f"batch {number}: table {oid} is not applied: {state and state['reason']}")
            self._check_rows(f"batch {number}", state, rows)
            self._check_mismatches(number, state, self.archive.expected(reached, mask_of(state)).mismatches.get(oid))
        if order is not None:
            self._check_rebuilt(number, order, states)

    def _check_definitions(self, number: int, since: int, reached: int) -> None:
        """Rows from before `since` have the numbers that files had before a redrive."""
        expected = self.archive.known[reached - 1] if self.archive.known and reached else {}
        rows = [row for row in self.rows("catalog") if row["xid"] is None and since <= row["batch"] <= number]
        definitions = Definitions.of(map(catalog_entry, rows))
        entries = [entry for oid in {row["oid"] for row in rows} if (entry := definitions.committed(oid))]
        found = {e.definition.oid: (bool(e.definition.columns), e.definition.mark.rewrites) for e in entries}
        if found != expected:
            raise BrokenPromiseError(f"batch {number}: definitions {found}, expected {expected}")

    def _check_mismatches(self, number: int, state: dict[str, Any], known: Mismatches | None) -> None:
        """Of changes with the rows that were there: not those of a snapshot, of another program, or of an erasure."""
        found = state["mismatches"] and Mismatches(*state["mismatches"])
        is_comparable = state["oid"] not in self.loaded.keys() | self.forgotten
        if found != known and is_comparable and not self._was_foreign(state):
            raise BrokenPromiseError(f"batch {number}: {state['path']}: found {found}, expected {known}")

    def _check_erased(self, number: int, work: str) -> None:
        """Neither landed files, nor the ledger, nor older versions of tables have the rows. Whether tables have them,
        and whether anything else is missing, their comparison with the archive's rest shows."""
        order = ErasureOrder.from_json(work)
        self.archive, self.tables = self.archive.after(self.erasures[number]), {}
        self.forgotten |= {*order.oids}
        for path, content in self.receiver.folder.contents.items():
            if hashlib.sha256(decompress(content, path)).hexdigest() in self.receiver.stale:
                raise BrokenPromiseError(f"batch {number}: {path} still has erased rows")
        for path in (*order.places, *(f"{ROOT}/{table}" for table in COPIED)):
            left = self.storage.table(path).older_versions()
            if left:
                raise BrokenPromiseError(f"batch {number}: {path} still has versions {left}")
        self._check_copies(number, order)
        if self.storage.kept:
            raise BrokenPromiseError(f"batch {number}: what was found is still there")

    def _check_copies(self, number: int, order: ErasureOrder) -> None:
        """In open transactions, whose tuples are as sent without a mask."""
        relations = {row["oid"]: relation_of(row) for row in self.rows("relations") if row["oid"] in order.oids}
        for row in self.rows("open_transactions") if self.archive.secret is None else ():
            relation = relations.get(row["relation"])
            if relation is not None and self.request is not None and is_erased(self.request, relation, row):
                raise BrokenPromiseError(f"batch {number}: open transactions still have erased rows")

    def _rows_at(self, count: int, oid: int, state: Mapping[str, Any] | None) -> Rows | None:
        """Of a table after so many messages. Loaded tables may be ahead of it."""
        mask, loaded = None if state is None else mask_of(state), self.loaded.get(oid, 1) - 1
        if loaded > self.archive.expected(count).lsn:
            return self.archive.expected_at(loaded, mask).tables[oid]
        return self.archive.expected(count, mask).tables.get(oid)

    def _record_removed(self, row: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Only displaced tables are removed: from storage first, and then from the ledger."""
        kept = {state["oid"] for state in row["tables"]}
        for state in () if before is None else before["tables"]:
            is_gone = state["version"] >= 0 and self.storage.table(state["path"]).version < 0
            if _is_displaced(state) and is_gone:
                self.removed.add(state["oid"])
            elif state["oid"] not in kept:
                raise BrokenPromiseError(f"batch {row['batch']} has no table {state['oid']}")

    def _check_rebuilt(self, number: int, order: BackfillOrder, states: Mapping[int, dict[str, Any]]) -> None:
        """A rebuild replaces whatever another program has written. After an erasure, that of a table that was loaded
        starts from the rows that the erasure left."""
        for oid in () if order.is_range else order.oids:
            state = states.get(oid)
            if state is None or state["status"] != "applied" or state["version"] < 0:
                continue
            starts_empty = oid not in self.loaded.keys() & self.forgotten
            is_foreign = self._content(state["path"], state["version"]).is_foreign and starts_empty
            if is_foreign or state["version"] <= self.at_begin.get(number, {}).get(state["path"], -1):
                raise BrokenPromiseError(f"batch {number} has not rebuilt {state['path']}")

    def _check_files(self, number: int, files: list[dict[str, Any]], begun: dict[str, Any]) -> None:
        read = {file["file"]: (file["offset"], file["consumed"]) for file in files}
        wanted = {file["file"]: (file["offset"], file["consumed"]) for file in begun["files"]}
        if read != wanted:
            raise BrokenPromiseError(f"batch {number} began with {wanted} and ended with {read}")
        for file in files:
            accounted = sum(file[name] or 0 for name in ACCOUNTS.values())
            size = file["consumed"] - file["offset"] if file["status"] == "read" else accounted
            if accounted != size:
                raise BrokenPromiseError(f"batch {number}: {file['path']}: {accounted} of {size} bytes accounted for")

    def _check_same_rows(self, row: dict[str, Any], before: dict[str, Any] | None) -> None:
        """Maintenance changes no row, and keeps what another program has changed out of the ledger."""
        if before is None:
            raise BrokenPromiseError(f"batch {row['batch']} is done, and its beginning was not recorded")
        places = {state["oid"]: (state["path"], state["version"]) for state in before["tables"]}
        for state in row["tables"]:
            old, new = places.get(state["oid"]), (state["path"], state["version"])
            if old != new and (old is None or self._content(*old).printed() != self._content(*new).printed()):
                raise BrokenPromiseError(f"batch {row['batch']} changed {state['path']} without a beginning")

    def check_read(self, who: str, state: Mapping[str, Any], batch: int, content: Content) -> None:
        """Of a reader that reads while other processes work."""
        rows = self._rows_at(self._reached(batch), state["oid"], state)
        if (
            rows is not None
            and state["oid"] not in self.removed
            and not content.is_foreign
            and self._differ(state, content.printed(), rows)
        ):
            raise BrokenPromiseError(f"{who}: other rows")

    def _check_rows(self, who: str, state: dict[str, Any], rows: Rows) -> None:
        content = self._content(state["path"], state["version"])
        if not content.is_foreign and self._differ(state, content.printed(), rows):
            raise BrokenPromiseError(f"{who}: {state['path']}, version {state['version']}, has other rows")
        self.tables[state["path"], state["version"]] = content

    def _differ(self, state: Mapping[str, Any], rows: Rows, expected: Rows) -> bool:
        """The rows of a snapshot have its commit, not their own, and the table has nothing from before it, such as
        columns that were dropped."""
        since = self.loaded.get(state["oid"])
        if since is None:
            return rows != expected
        has_rows = table_mode(Mode(state["mode"])).has_rows
        found, wanted = (_current(own) if has_rows else _later(own, since) for own in (rows, expected))
        return found != wanted

    def _was_foreign(self, state: dict[str, Any]) -> bool:
        """Another program changed rows, which the batches since then were compared with."""
        table = self.storage.table(state["path"])
        return any(table.content(version).is_foreign for version in range(state["version"] + 1))

    def _content(self, path: str, version: int) -> Content:
        table = self.storage.table(path)
        if version > table.version:
            raise BrokenPromiseError(f"{path} has no version {version}")
        content: Content = table.content(version)
        return content

    def _check_reader(self) -> None:
        """The tables as of the last finished batch are there, and as they were when it ended."""
        if self.newest is None or self.is_erasing:
            return
        for _, state in tables_in(self.newest["tables"], ROOT):
            place = (state["path"], state["version"])
            if place not in self.tables:
                continue
            content = self.storage.table(state["path"]).read(state["version"])
            if content is not self.tables[place]:
                if content.printed() != self.tables[place].printed():
                    raise BrokenPromiseError(f"{state['path']}, version {state['version']}, has changed")
                self.tables[place] = content


def _snapshot_of(row: Mapping[str, Any] | None) -> SnapshotOrder | None:
    """The order of a batch that loads a snapshot."""
    work = None if row is None else row["backfill"]
    return SnapshotOrder.from_json(work) if work is not None and "snapshot" in json.loads(work) else None


def _backfill_of(row: Mapping[str, Any] | None) -> BackfillOrder | None:
    """The order of a backfill or a redrive."""
    work = None if row is None else row["backfill"]
    return BackfillOrder.from_json(work) if work is not None and "oids" in json.loads(work) else None


def _is_displaced(state: Mapping[str, Any]) -> bool:
    return "/displaced/" in state["path"]


def _current(rows: Rows) -> list[str]:
    """PostgreSQL's rows, without their commits."""
    metadata = re.compile(f"'_pg_commit_lsn': .*(?='_pg_unrepresentable')|{RETIRED}.*")
    return sorted(metadata.sub("", text) for text, _, is_there in rows if is_there)


def _later(changes: Rows, since: int) -> list[str]:
    return [text.partition(RETIRED)[0] for text, lsn, _ in changes if lsn > since]

"""Reads a simulated archive again, for backfills."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa

from pgoutput_etl.errors import ArchiveError, RunError
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.executors import iterate_blocks, pack_blocks, positions_of, statistics_of, with_status
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.landing.fingerprint import KnownContents, task_again
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.ledger.archive import LedgerArchive, ReadFile
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from pgoutput_etl.scan.message_row import CHANGE_TAGS, LOGICAL_TAG
from pgoutput_etl.schema.version_spans import RowPositions
from pgoutput_etl.targets.plan import BEFORE_FILES, TableState
from pgoutput_etl.timestamps import microseconds_of
from pgoutput_etl.transactions.cutoff import Cutoff, commits_before
from pgoutput_etl.transactions.outcome import FragmentId, TransactionStatus
from pgoutput_etl.transactions.statistics import BatchStatistics, CommitRange, StatisticsRequest
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.simulation.landing import SimLandingFolder
from tests.simulation.storage import FilesRemovedError
from tests.support.scan_parts import scan_file


@dataclass(frozen=True, slots=True, eq=False)
class SimRows(CommittedBlocks):
    """blocks: a list[Block]."""

    blocks: Any

    def plus(self, later: Any) -> Any:
        return replace(later, blocks=[*self.blocks, *later.blocks])

    def statistics(self, request: StatisticsRequest) -> BatchStatistics:
        return statistics_of(self.blocks, self.statuses, request)

    def positions(self, oids: Collection[int], windows: Mapping[int, CommitRange]) -> dict[int, RowPositions]:
        return positions_of((b for b in self.blocks if b["relation"] in oids), self.statuses, windows)


@dataclass(frozen=True)
class SimArchive(LedgerArchive):
    landing: SimLandingFolder

    @contextmanager
    def reading(self, files: Collection[ReadFile], oids: Iterable[int], commits: CommitRange) -> Iterator[SimRows]:
        windows = dict.fromkeys(oids, commits)
        found = iterate_blocks(pack_blocks(self._batches(files, self.masking_policy), BlockKind.CHANGE))
        blocks = [block for block in found if block["kind"] == BlockKind.CHANGE.value and block["relation"] in windows]
        yield SimRows(blocks, self._statuses([file.number for file in files]), windows)

    def assembled(self, rows: MessageRows, without: Collection[int], cutoffs: Mapping[int, Cutoff]) -> SimRows:
        assert rows.blocks.local is not None
        found = iterate_blocks(rows.blocks.local.to_batches())
        blocks = [
            block for block in found if block["kind"] == BlockKind.CHANGE.value and block["relation"] not in without
        ]
        return SimRows(blocks, rows.statuses, commits_before(cutoffs))

    def staged(self, place: str, oids: Collection[int]) -> SimRows:
        storage, process = self.landing.storage, self.landing.process
        content = storage.read(process, f"read {place}", lambda: storage.staged[place])
        packed = iterate_blocks(pack_blocks(scan_file(place, BEFORE_FILES, content).batches, BlockKind.CHANGE))
        blocks = [b for b in packed if b["kind"] == BlockKind.CHANGE.value and b["relation"] in oids]
        return SimRows(blocks, StatusLookup.of((), ()), {})

    def discard(self, place: str) -> None:
        storage, process = self.landing.storage, self.landing.process
        storage.write(process, f"discard {place}", lambda: storage.staged.pop(place, None))

    def _batches(self, files: Collection[ReadFile], policy: MaskingPolicy | None) -> list[pa.RecordBatch]:
        """Of message rows. Raises ArchiveError."""
        landed = self.landed(file.path for file in files)
        batches: list[pa.RecordBatch] = []
        for file in files:
            current = landed[file.path]
            content = self.landing.read(current.path)
            if content is None:
                raise ArchiveError(f"{current.path}: it can't be read: it no longer exists")
            part = replace(file.part, path=current.path, size=current.size, modified=current.modified)
            task = task_again(file.number, part)
            batches += scan_part(current.path, content, task, KnownContents({}), Framing.AUTO, True).batches
        return batches if policy is None else [*map(policy.mask, batches)]

    def all_changes(self, oids: Collection[int]) -> Iterator[dict[str, Any]]:
        """As DeltaArchive, without truncates."""
        files = [file for file in self.files if not file.changes.keys().isdisjoint(oids)]
        statuses = self._statuses([file.number for file in files])
        for block in iterate_blocks(pack_blocks(self._batches(files, None), BlockKind.CHANGE)):
            if block["kind"] == BlockKind.CHANGE.value and block["relation"] in oids:
                rows: list[dict[str, Any]] = with_status(block, statuses).to_pylist()
                yield from (row for row in rows if row["tag"] != "T")

    def waiting(self, fragments: Collection[FragmentId], policy: MaskingPolicy | None) -> Any:
        numbers = {file for file, _ in fragments}
        batches = self._batches([file for file in self.files if file.number in numbers], policy)
        own = [batch.filter(_is_waiting(batch, fragments)) for batch in batches]
        return pa.Table.from_batches(pack_blocks(own, BlockKind.WAITING), BLOCK_SCHEMA)

    def first_commit(self, time: datetime) -> int:
        raise AssertionError(f"no backfill by time in this simulation: {time}")

    last_commit = first_commit

    def commits_of(self, xid: int) -> list[int]:
        raise AssertionError(f"no backfill as of a transaction in this simulation: {xid}")

    def _scopes(self) -> dict[FragmentId, int]:
        return {(row["file"], row["unit"]): row["scope"] for row in self._fragments() if row["scope"] is not None}

    def _outcomes(self, files: Collection[int]) -> list[dict[str, Any]]:
        return [row for row in self._fragments() if row["file"] in files]

    def _files_committed_in(self, commits: CommitRange) -> set[int]:
        committed = TransactionStatus.COMMITTED.value
        ended = [row for row in self._fragments() if row["fate"] == committed]
        return {row["file"] for row in ended if commits.first <= row["commit_lsn"] <= commits.last}

    def _fragments(self) -> list[dict[str, Any]]:
        names = ("units", "fate", "commit_ts", "xid", "commit_lsn", "scope", "aborted")
        rows = []
        for row in self.ledger.store.rows_before("transactions", names, self._next):
            at = row["commit_ts"]
            row = {**row, "commit_ts": None if at is None else microseconds_of(at)}
            rows += [{**row, **unit} for unit in row["units"] or ()]
        nothing = {"fate": TransactionStatus.OPEN.value, **dict.fromkeys(names[2:])}
        for outcome in self._unmasked.open_outcomes():
            own = {**nothing, "scope": outcome.scope}
            rows += [{"file": file, "unit": unit, **own} for file, unit in outcome.fragments]
        return rows

    def _check_readable(self, state: TableState) -> None:
        storage, table = self.landing.storage, self.landing.storage.table(str(state.path))
        try:
            storage.read(self.landing.process, f"read {state.path}", lambda: table.read(state.version))
        except FilesRemovedError as error:
            raise RunError(f"{state.full_name} can't be read as of version {state.version}") from error


def _is_waiting(batch: pa.RecordBatch, fragments: Collection[FragmentId]) -> pa.Array:
    columns = zip(*(batch.column(name).to_pylist() for name in ("file", "unit", "tag")), strict=True)
    return pa.array([(f, u) in fragments and tag in (*CHANGE_TAGS, LOGICAL_TAG) for f, u, tag in columns], pa.bool_())

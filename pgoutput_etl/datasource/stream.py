"""Plans the micro-batches of `spark.readStream.format("pgoutput")`.

A server sends commits in the order of their LSNs, and a commit that is not past all commits before it is a resent one.
So an LSN divides the rows of the batch reader: a micro-batch has the commits after the LSN of its first offset, through
the LSN of its second one. It is planned over all files, as any earlier one may describe its tables; its tasks only read
files with a part of its transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.datasource.options import COMMIT_LSN, Kind, ReadOptions
from pgoutput_etl.datasource.read_plan import ReadPlan, plan_listed
from pgoutput_etl.datasource.storage import list_archive
from pgoutput_etl.datasource.stream_offset import StreamOffset
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What one task reads. Sent to tasks. files: as in ReadPlan.read."""

    plan: ReadPlan
    files: list[str] | None
    kind: Kind
    after: int
    through: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """Raises ArchiveError."""
        for batch in self.plan.read(self.files):
            if self.kind is Kind.MESSAGES:
                # One outside of transactions is sent where it stands in WAL: before the commits after it.
                lsn = pc.coalesce(batch.column(COMMIT_LSN), batch.column("lsn"))
                batch = batch.filter(pc.and_(pc.greater(lsn, self.after), pc.less_equal(lsn, self.through)))
            elif self.kind is Kind.TRANSACTIONS:
                batch = batch.filter(pc.is_in(batch.column("status"), pa.array(ONCE_COMMITTED)))
            if batch.num_rows:
                yield batch


@dataclass(frozen=True, slots=True)
class _Archive:
    """The archive at one time. listed: its files. end: the offset."""

    listed: pa.Table
    plan: ReadPlan
    inspection: Inspection
    end: StreamOffset


@dataclass(slots=True)
class ArchiveStream:
    """A stream over a growing archive. schema: of its rows."""

    options: ReadOptions
    schema: pa.Schema
    _archive: _Archive | None = None
    _known: StreamOffset = field(default_factory=StreamOffset)  # the last one that was given out

    def __post_init__(self) -> None:
        if self.options.kind is Kind.RELATIONS:
            raise ConfigError("option 'kind': expected changes, messages or transactions for a stream, found relations")

    def latest(self, start: StreamOffset | None = None, target: StreamOffset | None = None) -> StreamOffset:
        """The archive's end, or `target`, an earlier one. start: where the next micro-batch begins, if that is known.

        Raises ConfigError, and ArchiveError if the archive does not continue `start`: then no offset of this archive
        gets into the checkpoint, and the stream goes on once the files are back.
        """
        archive = self._look() if target is None or self._archive is None else self._archive
        (self._known if start is None else start).check(archive.inspection, archive.plan.storage.read)
        self._known = archive.end if target is None else target
        return self._known

    def parts(self, start: StreamOffset, end: StreamOffset) -> list[StreamPart]:
        """The parts of a micro-batch. Raises ConfigError and ArchiveError."""
        archive = self._archive
        if archive is None or archive.end != end:  # after a restart: the archive may have grown since
            archive = self._look()
            end.check(archive.inspection, archive.plan.storage.read)
        start.check(archive.inspection, archive.plan.storage.read)
        plan, kind = archive.plan, self.options.kind
        if kind is not Kind.MESSAGES:
            plan = replace(plan, narrowing=plan.narrowing.within(start.lsn, end.lsn))
        files = [*plan.parts(), *([] if plan.rows.more is None else [None])]
        return [StreamPart(plan, part, kind, start.lsn, end.lsn) for part in files]

    def _look(self) -> _Archive:
        """Inspects the archive, unless its files are those of the last time."""
        landed, storage = list_archive(self.options.paths)
        if self._archive is None or landed.table != self._archive.listed:
            plan, inspection = plan_listed(self.options, landed, storage)
            if plan.schema != self.schema:
                raise ArchiveError(
                    f"{self.options.table}: its columns have changed since the stream was loaded: load it again, and "
                    "start the query with the same checkpoint"
                )
            end = StreamOffset.of(inspection, _last_lsn(self.options.kind, plan, inspection))
            self._archive = _Archive(landed.table, plan, inspection, end)
        return self._archive


def _last_lsn(kind: Kind, plan: ReadPlan, inspection: Inspection) -> int:
    """The LSN of the last commit, or of the last Message if only they are read."""
    lsns = [inspection.assembled.assembly.last_commit_lsn]
    if kind is Kind.MESSAGES:
        lsns += [pc.max(batch.column("lsn")).as_py() for part in plan.parts() for batch in plan.read(part)]
    return max(lsns)

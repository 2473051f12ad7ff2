"""Plans the micro-batches of `spark.readStream.format("pgoutput")`.

A server sends commits in LSN order, and a commit whose LSN is not past all earlier ones is a resent one. An LSN
therefore divides the rows of the batch reader: a micro-batch has the commits after its first offset's LSN, through its
second offset's. It is planned over all files, because any earlier file may describe its tables; its tasks only read
files with parts of its transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.datasource.options import COMMIT_LSN, Kind, ReadOptions
from pgoutput_etl.datasource.read_plan import ReadPlan, plan_read
from pgoutput_etl.datasource.storage import ArchiveStorage, list_archive
from pgoutput_etl.datasource.stream_offset import StreamedFiles, StreamOffset
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED


@dataclass(frozen=True, slots=True)
class StreamPart:
    """The part that one task reads. Sent to tasks. files: as in ReadPlan.read."""

    plan: ReadPlan
    files: list[str] | None
    kind: Kind
    after: int
    through: int

    def read(self) -> Iterator[pa.RecordBatch]:
        """Raises ArchiveError."""
        for batch in self.plan.read(self.files):
            if self.kind is Kind.MESSAGES:
                lsn = _message_lsns(batch)
                batch = batch.filter(pc.and_(pc.greater(lsn, self.after), pc.less_equal(lsn, self.through)))
            elif self.kind is Kind.TRANSACTIONS:
                batch = batch.filter(pc.is_in(batch.column("status"), pa.array(ONCE_COMMITTED)))
            if batch.num_rows:
                yield batch


def _message_lsns(batch: pa.RecordBatch) -> pa.Array:
    """The LSNs that order Messages: the commit's or, outside of transactions, the Message's own, because it is sent at
    its position in the WAL. A Message's own LSN is the end of its record, where the next commit's record may begin."""
    return pc.coalesce(batch.column(COMMIT_LSN), pc.subtract(batch.column("lsn"), 1))


@dataclass(frozen=True)
class PlannedArchive:
    """The archive as of one point in time. listed: its files. Small enough to be pickled with the source."""

    kind: Kind
    listed: pa.Table
    plan: ReadPlan
    streamed: StreamedFiles

    @classmethod
    def of(cls, options: ReadOptions) -> PlannedArchive:
        """Lists and inspects the archive. Raises ConfigError and ArchiveError."""
        return cls.of_listing(options, *list_archive(options.paths))

    @classmethod
    def of_listing(cls, options: ReadOptions, landed: Listing, storage: ArchiveStorage) -> PlannedArchive:
        plan, inspection = plan_read(options, landed, storage)
        return cls(options.kind, landed.table, plan, StreamedFiles.of(inspection))

    @cached_property
    def end(self) -> StreamOffset:
        """The last commit or, if only Messages are read, the last Message if that is later."""
        lsns = [self.streamed.last_lsn]
        if self.kind is Kind.MESSAGES:
            batches = (batch for part in self.plan.parts() for batch in self.plan.read(part))
            lsns += [pc.max(_message_lsns(batch)).as_py() for batch in batches]
        return StreamOffset.of(self.streamed, max(lsns))

    def check(self, offset: StreamOffset) -> None:
        """Raises ArchiveError unless the archive continues what a stream has read."""
        offset.check(self.streamed.files, self.plan.storage.read)


class ArchiveStream:
    """A stream over a growing archive."""

    def __init__(self, options: ReadOptions, archive: PlannedArchive) -> None:
        """archive: as of when the frame was created, with its schema. Raises ConfigError."""
        if options.kind is Kind.RELATIONS:
            raise ConfigError("option 'kind': expected changes, messages or transactions for a stream, found relations")
        self.options, self.schema = options, archive.plan.schema
        self._archive = archive
        self._known = StreamOffset()  # the last end of a micro-batch

    def latest(self, start: StreamOffset | None = None, target: StreamOffset | None = None) -> StreamOffset:
        """The archive's end, or the earlier offset `target`. start: where the next micro-batch begins, if known.

        Raises ConfigError, and ArchiveError if the archive doesn't continue `start`: then no offset of this archive
        gets into the checkpoint, and the stream continues once the files are back.
        """
        if target is None:
            self._look()
        self._archive.check(self._known if start is None else start)
        self._known = self._archive.end if target is None else target
        return self._known

    def parts(self, start: StreamOffset, end: StreamOffset) -> list[StreamPart]:
        """The parts of a micro-batch. Raises ConfigError and ArchiveError."""
        if end != self._archive.end:  # after a restart, the archive may have grown
            self._look()
            self._archive.check(end)
        self._archive.check(start)
        self._known = end
        plan, kind = self._archive.plan, self.options.kind
        if kind is not Kind.MESSAGES:
            plan = replace(plan, narrowing=plan.narrowing.within(start.lsn, end.lsn))
        return [StreamPart(plan, part, kind, start.lsn, end.lsn) for part in plan.parts()]

    def _look(self) -> None:
        """Inspects the archive, unless its files are the same as last time."""
        landed, storage = list_archive(self.options.paths)
        if landed.table == self._archive.listed:
            return
        archive = PlannedArchive.of_listing(self.options, landed, storage)
        if archive.plan.schema != self.schema:
            raise ArchiveError(
                f"{self.options.table}: its columns have changed since the stream was loaded: load it again, and "
                "start the query with the same checkpoint"
            )
        self._archive = archive

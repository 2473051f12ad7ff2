"""An archive in a notebook: its messages, transactions and changes as DataFrames.

    from pgoutput_etl.explore import read_archive

    archive = read_archive("landing/shop")                   # pandas, with all that is asked for in memory
    archive = read_archive("s3a://lake/landing/shop", spark) # Spark, of any size

Both have the same frames with the same columns (archive_rows.py, table_rows.py). `read_archive` looks into all files
once, as jobs/inspect.py does; a frame reads them again when it is asked for, and only as far as that takes. There is no
ledger, no target, and nothing is written. What is damaged doesn't stop it: the archive's repr says so.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pandas as pd
import pyarrow as pa

from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.explore.archive_rows import (
    CHANGES,
    MESSAGES,
    TRANSACTIONS,
    RowView,
    change_batches,
    message_batches,
    named_file,
    own_transactions,
    transaction_batches,
)
from pgoutput_etl.explore.html import page, sentence
from pgoutput_etl.explore.table_rows import RowQuery, table_batches
from pgoutput_etl.inspection.archive import Inspection, inspect_archive, inspection_contexts
from pgoutput_etl.inspection.local_runner import LocalRunner, is_local, list_local, read_local
from pgoutput_etl.inspection.message_lines import InspectionContext, MessageFilter
from pgoutput_etl.inspection.report import report_on
from pgoutput_etl.inspection.report_model import ArchiveReport
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.timestamps import microseconds_of, parse_time
from pgoutput_etl.transactions.outcome import TransactionStatus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkDataFrame
    from pyspark.sql import SparkSession


Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

OfFile = Callable[[str, bytes], Iterator[pa.RecordBatch]]

Lsns = tuple[int | str | None, int | str | None]

Times = tuple[datetime | str | None, datetime | str | None]

ANY: tuple[None, None] = (None, None)

# Whole numbers stay whole where some are missing.
_PANDAS = {
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


FrameT = TypeVar("FrameT")


class ArchiveView(ABC, Generic[FrameT]):
    """What both kinds of archive share. report: the figures of jobs/inspect.py."""

    def __init__(self, found: Inspection, view: RowView) -> None:
        self.report: ArchiveReport = report_on(found)
        self._inspection = found
        self._view = view

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {sentence(self.report)}>"

    def _repr_html_(self) -> str:
        return page(self.report)

    @property
    def files(self) -> pd.DataFrame:
        """As they were listed: path, status, size and content_bytes, framing, messages, first and last commit."""
        rows = [
            {
                **{name: getattr(file, name) for name in ("path", "status", "size", "content_bytes", "framing")},
                "messages": sum(file.messages.values()),
                "first_commit": file.first_commit_lsn,
                "last_commit": file.last_commit_lsn,
            }
            for file in self.report.files
        ]
        return pd.DataFrame(rows)

    @property
    def transactions(self) -> FrameT:
        """A row per transaction, or sending of one: xid, kind, fate, commit_lsn, commit_time, changes,
        aborted_changes, bytes, gid, origin, file; in the order of their commits, then those that have none."""
        view, own = self._view, own_transactions(self._inspection)
        return self._frame(lambda p, c: transaction_batches(p, c, view), TRANSACTIONS, ("commit_lsn", "xid"), own)

    @property
    def changes(self) -> FrameT:
        """A row per change: table, op, bytes, xid, subxid, fate, commit_lsn, commit_time, seq, relation, file, offset,
        lsn; as they stand in the archive. No values: `rows` has them."""
        view = self._view
        return self._frame(lambda p, c: change_batches(p, c, view), CHANGES)

    @property
    def messages(self) -> FrameT:
        """A row per message: file, offset, lsn, xid, subxid, kind, table, what, fate, commit_lsn, commit_time."""
        return self.find_messages()

    def find_messages(
        self,
        table: str | None = None,
        xid: int | None = None,
        lsn: Lsns = ANY,
        time: Times = ANY,
        names: str | None = None,
    ) -> FrameT:
        """Those that all that is given takes, as `jobs/inspect.py --messages`: a shell pattern of schema.table; a
        transaction or subtransaction; LSNs and times of commits, from and to, numbers and datetimes or text; a regular
        expression, looked for in names. Raises ValueError for a text that is no LSN or time."""
        told, limit = self._contexts(_message_filter(table, xid, lsn, time, names)), self._view.max_size
        return self._frame(lambda p, c: message_batches(told[p], c, limit), MESSAGES)

    def rows(
        self,
        table: str,
        where: Mapping[str, Any] | None = None,
        *,
        key: Iterable[str] | None = None,
        fate: str | None = "committed",
    ) -> FrameT:
        """The changes of "schema.table" with what is in them, as a table in mode append has them (docs/modes.md), in
        the order in which they took effect. `where`: columns and what is in them, a value or PostgreSQL's text; of a
        change to the key, before or after it; TRUNCATEs always. A DELETE has the key alone. `key`: of a table with
        REPLICA IDENTITY FULL. `fate`: None for all, also what was aborted."""
        view, asked = self._view, self._query(table, where, key, fate)
        in_order = ("_pg_commit_lsn", "_pg_seq")
        return self._frame(lambda p, c: table_batches(p, c, view, asked), asked.schema, in_order)

    @abstractmethod
    def _frame(
        self, of_file: OfFile, schema: pa.Schema, order: Sequence[str] = (), more: pa.Table | None = None
    ) -> FrameT:
        """What `of_file` gives of each path and content, and what there is of no file. It may be called elsewhere."""

    def _query(
        self, table: str, where: Mapping[str, Any] | None, key: Iterable[str] | None, status: str | None
    ) -> RowQuery:
        statuses = frozenset(TransactionStatus) if status is None else frozenset([_status_of(status)])
        return RowQuery.of_inspection(self._view, table, None if key is None else tuple(key), statuses, where or {})

    def _contexts(self, wanted: MessageFilter) -> dict[str, InspectionContext]:
        return {context.path: context for context in inspection_contexts(self._inspection, wanted, False, False)}


def _status_of(name: str) -> TransactionStatus:
    try:
        return TransactionStatus(name)
    except ValueError:
        raise ConfigError(f"fate: expected one of {', '.join(status.value for status in TransactionStatus)}") from None


def _message_filter(table: str | None, xid: int | None, lsn: Lsns, time: Times, names: str | None) -> MessageFilter:
    first, last = (parse_lsn(each) if isinstance(each, str) else each for each in lsn)
    begin, end = (_microseconds(each) for each in time)
    return MessageFilter(table, xid, first, last, begin, end, names)


def _microseconds(time: datetime | str | None) -> int | None:
    if time is None:
        return None
    at = parse_time(time) if isinstance(time, str) else parse_time(time.isoformat())
    return microseconds_of(at)


class Archive(ArchiveView[pd.DataFrame]):
    """Frames are pandas': whole numbers as Int64, which knows NULL, times with their zone. What is asked for has to fit
    into memory: a million rows of `changes` take 110 MB, and twice that while they are made."""

    def _frame(
        self, of_file: OfFile, schema: pa.Schema, order: Sequence[str] = (), more: pa.Table | None = None
    ) -> pd.DataFrame:
        paths = self._view.tasks
        found = [b for path in paths for b in named_file(path, of_file(path, _content(path))) if b.num_rows]
        table = pa.Table.from_batches([*found, *(more.to_batches() if more is not None else ())], schema)
        if order:
            table = table.sort_by([(name, "ascending") for name in order])
        frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS.get, maps_as_pydicts="strict")
        return frame


def _content(path: str) -> bytes:
    try:
        return read_local(path)
    except OSError as error:
        raise ArchiveError(f"{path}: it can't be read: {error.strerror}") from None
    except OverflowError as error:
        raise ArchiveError(str(error)) from None


class SparkArchive(ArchiveView["SparkDataFrame"]):
    """Frames are Spark's, lazy, in no order: `seq` and `_pg_seq` order the changes of a commit. The driver holds what
    jobs/inspect.py holds; a file is read by one task."""

    def __init__(self, spark: SparkSession, found: Inspection, view: RowView) -> None:
        super().__init__(found, view)
        self.spark = spark

    def _frame(
        self,
        of_file: OfFile,
        schema: pa.Schema,
        order: Sequence[str] = (),  # noqa: ARG002  # Spark's frames have none
        more: pa.Table | None = None,
    ) -> SparkDataFrame:
        from pgoutput_etl.explore.on_spark import frame_of_files, frame_of_rows

        frame = frame_of_files(self.spark, self._view, of_file, schema)
        return frame if more is None else frame.unionByName(frame_of_rows(self.spark, more))


@overload
def read_archive(
    paths: Paths, spark: None = None, *, framing: str = "auto", types: Mapping[str, str] | None = None
) -> Archive: ...


@overload
def read_archive(
    paths: Paths, spark: SparkSession, *, framing: str = "auto", types: Mapping[str, str] | None = None
) -> SparkArchive: ...


def read_archive(
    paths: Paths, spark: SparkSession | None = None, *, framing: str = "auto", types: Mapping[str, str] | None = None
) -> Archive | SparkArchive:
    """Looks into one slot's archive, or a part of it: files, folders and globs, in any order.

    Without `spark` they are files of this machine, and frames are pandas'; with it, they are on any file system that
    Spark reads. `types`: what users' types are, as in the configuration. Raises ConfigError if there is no such path.
    """
    listed = [os.fspath(paths)] if isinstance(paths, str | os.PathLike) else [os.fspath(path) for path in paths]
    of_framing = _framing(framing)
    if spark is not None:
        from pgoutput_etl.explore.on_spark import inspect_on_spark

        found, limit = inspect_on_spark(spark, listed, of_framing)
        view = RowView.of_inspection(found, types or {}, of_framing, limit)
        return SparkArchive(spark, found, view)
    elsewhere = [path for path in listed if not is_local(path)]
    if elsewhere:
        raise ConfigError(f"{elsewhere[0]} is not on this machine: read_archive(…, spark) reads it")
    landed = list_local(listed)
    # In this process alone: in others, a script that calls this at its top would be run once more.
    with TemporaryDirectory(prefix="pgoutput-etl.") as folder, LocalRunner(Path(folder), of_framing) as runner:
        found = inspect_archive(landed, runner, lambda _said: None)
    return Archive(found, RowView.of_inspection(found, types or {}, of_framing))


def _framing(name: str) -> Framing:
    try:
        return Framing(name)
    except ValueError:
        raise ConfigError(f"framing: expected one of {', '.join(each.value for each in Framing)}") from None

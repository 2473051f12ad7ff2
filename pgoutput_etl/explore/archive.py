"""An archive's messages, transactions, and changes as DataFrames.

    from pgoutput_etl.explore.archive import read_archive

    archive = read_archive("landing/shop")                   # pandas: each frame is in memory
    archive = read_archive("s3a://lake/landing/shop", spark) # Spark: archives of any size

Both have the same frames with the same columns (archive_rows.py, table_rows.py). `read_archive` inspects all files
once, as jobs/inspect.py does; each frame reads them again. Needs neither ledger nor target, and writes nothing. Damaged
files don't stop it; the archive's repr mentions them.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import pandas as pd
import pyarrow as pa

from pgoutput_etl.console import no_progress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.explore.archive_rows import (
    CHANGES,
    MESSAGES,
    TRANSACTIONS,
    FileReader,
    RowView,
    batches_of_files,
    change_batches,
    message_batches,
    own_transactions,
    transaction_batches,
)
from pgoutput_etl.explore.html import report_html, summary_line
from pgoutput_etl.explore.table_rows import RowQuery, table_batches
from pgoutput_etl.inspection.archive import Inspection, inspect_archive, inspection_contexts
from pgoutput_etl.inspection.local_runner import is_local, list_local, local_runner, read_local
from pgoutput_etl.inspection.message_lines import MessageFilter
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

Lsns = tuple[int | str | None, int | str | None]

Times = tuple[datetime | str | None, datetime | str | None]

ANY: tuple[None, None] = (None, None)

# Nullable types, so integers with missing values don't become floats.
_PANDAS_TYPES = {
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.bool_(): pd.BooleanDtype(),
}


FrameT = TypeVar("FrameT")

EnumT = TypeVar("EnumT", bound=Enum)


class ArchiveView(ABC, Generic[FrameT]):
    """The methods that both kinds of archive have. report: the figures of jobs/inspect.py."""

    def __init__(self, inspection: Inspection, view: RowView) -> None:
        self.report: ArchiveReport = report_on(inspection)
        self._inspection = inspection
        self._view = view

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {summary_line(self.report)}>"

    def _repr_html_(self) -> str:
        return report_html(self.report)

    @property
    def files(self) -> pd.DataFrame:
        """One row per listed file: path, status, size, content_bytes, framing, messages, first_commit, last_commit."""
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
        """One row for each time a transaction was sent: xid, kind, fate, commit_lsn, commit_time, changes,
        aborted_changes, bytes, gid, origin, file. In commit order; transactions without a commit come last."""
        read, own = partial(transaction_batches, view=self._view), own_transactions(self._inspection)
        return self._frame(read, TRANSACTIONS, ("commit_lsn", "xid"), own)

    @property
    def changes(self) -> FrameT:
        """One row per change, in archive order: table, op, bytes, xid, subxid, fate, commit_lsn, commit_time, seq,
        relation, file, offset, lsn. Only `rows` has cell values."""
        return self._frame(partial(change_batches, view=self._view), CHANGES)

    @property
    def messages(self) -> FrameT:
        """One row per message: file, offset, lsn, xid, subxid, kind, table, what, fate, commit_lsn, commit_time."""
        return self.find_messages()

    def find_messages(
        self,
        table: str | None = None,
        xid: int | None = None,
        lsn: Lsns = ANY,
        time: Times = ANY,
        names: str | None = None,
    ) -> FrameT:
        """Messages that meet all conditions, as in `jobs/inspect.py --messages`. table: shell pattern for schema.table;
        xid: of a transaction or subtransaction; lsn: first and last LSN; time: first and last commit time; names:
        regular expression to search for in names. Raises ValueError for text that isn't an LSN or a time."""
        first, last = (parse_lsn(limit) if isinstance(limit, str) else limit for limit in lsn)
        begin, end = map(_microseconds, time)
        wanted = MessageFilter(() if table is None else (table,), xid, first, last, begin, end, names)
        contexts = {context.path: context for context in inspection_contexts(self._inspection, wanted, False, False)}
        limit = self._view.max_size
        return self._frame(lambda p, c: message_batches(contexts[p], c, limit), MESSAGES)

    def rows(
        self,
        table: str,
        where: Mapping[str, Any] | None = None,
        *,
        key: Iterable[str] | None = None,
        fate: str | None = "committed",
    ) -> FrameT:
        """The changes of "schema.table" with their values, in commit order, in the columns of mode append
        (docs/modes.md). where: values or PostgreSQL's texts, by column; a change of the key matches by its old or new
        key, a TRUNCATE always matches, and a DELETE only has key columns. key: for a table with REPLICA IDENTITY FULL.
        fate: a transaction status, or None for all."""
        view = self._view
        statuses = frozenset(TransactionStatus if fate is None else [_member(TransactionStatus, fate, "fate")])
        query = RowQuery.of_inspection(view, table, None if key is None else tuple(key), statuses, where or {})
        order = ("_pg_commit_lsn", "_pg_seq")
        return self._frame(partial(table_batches, view=view, query=query), query.schema, order)

    @abstractmethod
    def _frame(
        self, read_file: FileReader, schema: pa.Schema, order: Sequence[str] = (), more: pa.Table | None = None
    ) -> FrameT:
        """The batches that `read_file`, which may run on executors, makes from each file, plus the rows of `more`."""


def _member(kind: type[EnumT], value: str, parameter: str) -> EnumT:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{parameter}: expected one of {', '.join(member.value for member in kind)}") from None


def _microseconds(time: datetime | str | None) -> int | None:
    if time is None:
        return None
    return microseconds_of(parse_time(time if isinstance(time, str) else time.isoformat()))


class Archive(ArchiveView[pd.DataFrame]):
    """An archive with pandas frames: nullable integers, and times with time zones. Each frame must fit into memory: a
    million rows of `changes` take 110 MB, and twice that while the frame is created."""

    def _frame(
        self, read_file: FileReader, schema: pa.Schema, order: Sequence[str] = (), more: pa.Table | None = None
    ) -> pd.DataFrame:
        files = ((path, read_local(path)) for path in self._view.tasks)
        batches = [batch for batch in batches_of_files(read_file, files) if batch.num_rows]
        table = pa.Table.from_batches([*batches, *(more.to_batches() if more is not None else ())], schema)
        if order:
            table = table.sort_by([(name, "ascending") for name in order])
        frame: pd.DataFrame = table.to_pandas(types_mapper=_PANDAS_TYPES.get, maps_as_pydicts="strict")
        return frame


class SparkArchive(ArchiveView["SparkDataFrame"]):
    """An archive with lazy, unordered Spark frames: `seq` and `_pg_seq` order the changes of a commit. The driver needs
    as much memory as in jobs/inspect.py; each file is read by one task."""

    def __init__(self, spark: SparkSession, inspection: Inspection, view: RowView) -> None:
        super().__init__(inspection, view)
        self.spark = spark

    def _frame(
        self,
        read_file: FileReader,
        schema: pa.Schema,
        order: Sequence[str] = (),  # noqa: ARG002  # Spark's frames are unordered
        more: pa.Table | None = None,
    ) -> SparkDataFrame:
        from pgoutput_etl.explore.on_spark import frame_of_files

        return frame_of_files(self.spark, self._view, read_file, schema, more)


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
    """Inspects all or part of one slot's archive: files, folders, and globs, in any order.

    Without `spark`, paths are local and frames are pandas'; with it, paths are on any file system that Spark reads.
    types: as in the configuration. Raises ConfigError for a path that doesn't exist.
    """
    listed = [os.fspath(paths)] if isinstance(paths, str | os.PathLike) else [os.fspath(path) for path in paths]
    file_framing = _member(Framing, framing, "framing")
    if spark is not None:
        from pgoutput_etl.explore.on_spark import inspect_on_spark

        inspection, limit = inspect_on_spark(spark, listed, file_framing)
        view = RowView.of_inspection(inspection, types or {}, file_framing, limit)
        return SparkArchive(spark, inspection, view)
    remote = [path for path in listed if not is_local(path)]
    if remote:
        raise ConfigError(f"{remote[0]} is not a local path: use read_archive(…, spark)")
    landed = list_local(listed)
    # A single process: others would again run a script that calls this function at module level.
    with local_runner(file_framing, processes=1) as runner:
        inspection = inspect_archive(landed, runner, no_progress)
    return Archive(inspection, RowView.of_inspection(inspection, types or {}, file_framing))

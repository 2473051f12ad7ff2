"""The modes that process every event of a table. A mirror, which only needs their net effect, is in mirror.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.load import append, history, soft_delete
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.row_states import EventLog
from pgoutput_etl.load.table_writer import TableCommit
from pgoutput_etl.schema.table_shape import TableShape


@dataclass(frozen=True, slots=True)
class LogMode:
    """write: makes one Delta commit. rows_after: see mirror.rows_after."""

    write: Callable[[TableCommit, TableShape, EventLog, TargetRows], WriteResult]
    rows_after: Callable[[DataFrame | None, TableShape, EventLog], DataFrame]


LOG_MODES: Mapping[Mode, LogMode] = {
    Mode.SOFT_DELETE: LogMode(soft_delete.write, soft_delete.rows_after),
    Mode.HISTORY: LogMode(history.write, history.rows_after),
    Mode.APPEND: LogMode(append.write, append.rows_after),
}

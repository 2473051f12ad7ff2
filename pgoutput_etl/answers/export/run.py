"""Exports tables as of a commit to files that PostgreSQL can load, with a psql script that loads them.

Values are PostgreSQL's texts, as verify compares them, so columns get exactly their values back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.export.report import ExportedTable, ExportSummary
from pgoutput_etl.answers.export.request import SCRIPT, ExportFormat, ExportRequest
from pgoutput_etl.answers.moment.read import MomentReader, archive_of, commit_of
from pgoutput_etl.answers.verify.row_text import delta_texts, text_names
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.file_access import Access
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.load.target_columns import current_rows
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.moment import Moment
from pgoutput_etl.postgres.copy_format import text_line
from pgoutput_etl.postgres.queries import SCRIPT_SETTINGS, identifier, insertion, literal, qualified
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.platform import local_path
from pgoutput_etl.spark.shared_file import shared_file
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types import UserTypes
from pgoutput_etl.types.canonical_text import ComparedColumn

_BEGIN = r"""-- {name} as of {lsn}. In this folder: psql -f {script}
\set ON_ERROR_STOP on
BEGIN;
{settings}"""

_LINE = pa.schema([("value", pa.string())])


def export(
    spark: SparkSession, config: Config, request: ExportRequest, progress: Progress = no_progress
) -> ExportSummary:
    """After a PgoutputEtlError, the folder has no script."""
    archive = archive_of(spark, config)
    lsn = archive.last.last_commit_lsn if request.at is None else commit_of(archive, Moment.of(request.at))
    folder = request.out.rstrip("/")
    access = config.state.access()
    script = shared_file(spark, folder, SCRIPT, access)
    if script is None:
        raise RunError("export can't write over Spark Connect, where files are the server's: run it without")
    found = MomentReader(spark, archive, progress).find(lsn, request.tables).named(request.tables)
    tables = [
        ExportedTable(archive.name(oid), why_not=f"the archive has it only since a snapshot at {_reached(state)}")
        for oid, state in found.ahead.items()
    ]
    begin = _BEGIN.format(name=config.source.name, lsn=format_lsn(lsn), script=SCRIPT, settings=SCRIPT_SETTINGS)
    lines = [begin]
    for state, rows in sorted(found.rows, key=lambda table: table[0].full_name):
        table = _Table.of(state, archive.user_types, request.format)
        why_not = table.why_not(found.held)
        if why_not is not None:
            tables.append(ExportedTable(state.full_name, why_not=why_not))
            continue
        progress(f"writing {state.full_name}")
        with _private(local_path(spark, folder), table.folder, access):
            exported = table.write(rows, folder)
        tables.append(exported)
        parts = sorted(map(basename, spark.read.text(f"{folder}/{exported.folder}").inputFiles()))
        lines += [table.load(f"{exported.folder}/{part}") for part in parts]
    script.replace("".join([*lines, "COMMIT;\n"]))
    return ExportSummary(config.source.name, lsn, folder, tuple(tables))


@contextmanager
def _private(folder: str | None, own: str, access: Access) -> Iterator[None]:
    """Within the context, keeps everything written to `own`, below a local folder, private."""
    if folder is None:
        yield
        return
    if not Path(folder).exists():
        access.make_folder(Path(folder))
    access.make_folder(Path(folder, own).parent)
    yield
    access.give_all(Path(folder, own))


def _reached(state: TableState) -> str:
    return format_lsn(state.last_commit_lsn)


@dataclass(frozen=True, slots=True)
class _Table:
    state: TableState
    columns: tuple[ComparedColumn, ...]
    format: ExportFormat

    @classmethod
    def of(cls, state: TableState, user_types: UserTypes, form: ExportFormat) -> _Table:
        columns = table_columns(state.relation, state.retired, user_types)
        return cls(state, tuple(ComparedColumn(c.name, c.type) for c in columns if not c.retired), form)

    @property
    def folder(self) -> str:
        return f"{path_segment(self.state.schema)}/{path_segment(self.state.table)}"

    @property
    def _name(self) -> str:
        return qualified(self.state.schema, self.state.table)

    @property
    def _column_names(self) -> str:
        return ", ".join(identifier(column.name) for column in self.columns)

    def why_not(self, held: Mapping[int, TableState]) -> str | None:
        if self.state.oid in held:
            return f"it is incomplete, with the commits through {_reached(held[self.state.oid])}"
        if not table_mode(self.state.mode).has_rows:
            return "mode append has changes, not rows"
        if not self.columns:
            return "it has no columns"
        if self.format is ExportFormat.COPY and "\n" in self._name + self._column_names:
            return "psql's \\copy takes no name with a line break: use --format sql"
        return None

    def write(self, rows: DataFrame, folder: str) -> ExportedTable:
        """Writes the rows to a folder for this table."""
        texts = delta_texts(current_rows(rows, self.state.mode), self.columns)
        counts = Observation()
        is_unknown = F.count_if(F.col("unknown").isNotNull()).alias("never_sent")
        texts = texts.observe(counts, F.count(F.lit(1)).alias("rows"), is_unknown)
        line, names = self._line(), text_names(len(self.columns))

        def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                fields = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
                yield pa.RecordBatch.from_arrays([pa.array(map(line, fields), pa.string())], schema=_LINE)

        lines = texts.mapInArrow(convert, spark_schema(_LINE))
        try:
            lines.write.text(f"{folder}/{self.folder}")
        except AnalysisException as error:
            if error.getCondition() != "PATH_ALREADY_EXISTS":
                raise
            raise ConfigError(f"--out: {folder}/{self.folder} exists: name another folder") from None
        masked = sorted(self.state.masks)
        notes = (f"masked: {', '.join(masked)}",) if masked else ()
        return ExportedTable(self.state.full_name, self.folder, counts.get["rows"], counts.get["never_sent"], notes)

    def _line(self) -> Callable[[Sequence[str | None]], str]:
        """A function that makes a row's line from the texts of its values."""
        if self.format is ExportFormat.COPY:
            return text_line
        begin = insertion(self._name, [identifier(column.name) for column in self.columns])

        def insert(texts: Sequence[str | None]) -> str:
            return f"{begin}({', '.join(map(literal, texts))});"

        return insert

    def load(self, path: str) -> str:
        """The line of the script that loads a file."""
        if self.format is ExportFormat.SQL:
            return f"\\i '{path}'\n"
        return f"\\copy {self._name} ({self._column_names}) FROM '{path}'\n"

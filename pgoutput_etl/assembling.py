"""The driver's part in Spark: control rows in, small tables to join with out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.batch_plan import runs_of
from pgoutput_etl.blocks import Kind, unpacked
from pgoutput_etl.changes import ROW_SCHEMA
from pgoutput_etl.connecting import frame
from pgoutput_etl.errors import SequenceError
from pgoutput_etl.fates import Fates
from pgoutput_etl.message_rows import CHANGE_TAGS, ERROR_TAG, MESSAGE_SCHEMA, SUMMARY_TAG, FileScan, ScanError
from pgoutput_etl.origins import Origins
from pgoutput_etl.outcomes import CONTROL_COLUMNS, Control, Fate, control_rows
from pgoutput_etl.relations import Place, RelationHistory, Run
from pgoutput_etl.shipping import (
    Which,
    committed_places,
    ended_transactions,
    logical_messages,
    message_rows,
    of_kind,
    row_places,
    tally,
    version_spans,
)
from pgoutput_etl.tallies import CommitWindow, Tally, TallyRequest
from pgoutput_etl.targets import Segment, TableChanges
from pgoutput_etl.transactions import Assembly
from pgoutput_etl.versions import RowPlaces

_OF_UNITS = pa.schema(
    [
        ("file", pa.int64()),
        ("unit", pa.int32()),
        ("of_unit", pa.string()),
        ("unit_lsn", pa.int64()),
        ("unit_ts", pa.int64()),
        ("unit_xid", pa.int64()),
        ("scope", pa.int64()),
        ("aborted", pa.list_(pa.int64())),
    ]
)
_OF_STRETCHES = pa.schema([("file", pa.int64()), ("stretch", pa.int32()), ("mark", pa.int64())])


@dataclass(frozen=True, slots=True)
class Scanned:
    """The driver's part of a scan, by the files' numbers: summaries, control messages, and why there are none."""

    scans: dict[int, FileScan]
    controls: dict[int, list[Control]]
    errors: dict[int, ScanError]

    def of(self, numbers: Collection[int]) -> Scanned:
        """Without the other files."""
        scans = {number: scan for number, scan in self.scans.items() if number in numbers}
        return Scanned(scans, {n: rows for n, rows in self.controls.items() if n in numbers}, {})


def collect_scans(blocks: DataFrame) -> Scanned:
    """What is collected: one row per file, its Relation, Type, stream and two-phase messages, and the Commit of a
    transaction that an earlier file began."""
    scanned = Scanned({}, {}, {})
    of_driver = of_kind(blocks, Kind.CONTROL).select("rows", "head", "tuples").toArrow()
    for block in of_driver.to_pylist():
        rows = unpacked(block, ["file", *CONTROL_COLUMNS])
        for file, of_file in _by_file(rows):
            scanned.controls.setdefault(file, []).extend(control_rows([of_file]))
        for row in rows.filter(pc.is_in(rows.column("tag"), pa.array([SUMMARY_TAG, ERROR_TAG]))).to_pylist():
            if row["tag"] == SUMMARY_TAG:
                scanned.scans[row["file"]] = FileScan.from_json(row["body"])
            else:
                scanned.errors[row["file"]] = ScanError.from_json(row["body"])
    return scanned


def _by_file(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Stretches of rows of one file."""
    files = rows.column("file").to_numpy()
    begins = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], len(files)], strict=True):
        yield int(files[begin]), rows.slice(begin, end - begin)


@dataclass(frozen=True)
class Rows:
    """A batch's message rows, as blocks, and what became of them.

    blocks: of the files that were scanned, of which those with a number in `left_out` are none of the batch's. waiting:
    changes of transactions that earlier batches left open.
    """

    spark: SparkSession
    blocks: DataFrame
    waiting: DataFrame | None
    left_out: frozenset[int]
    assembly: Assembly

    @cached_property
    def fates(self) -> Fates:
        """Once all files are assembled."""
        outcomes = (*self.assembly.outcomes, *self.assembly.open_outcomes())
        return Fates.of(outcomes, self.assembly.watermarks, self.left_out, self.assembly.origins)

    def tally(self, request: TallyRequest) -> Tally:
        blocks = self.blocks if self.waiting is None else self.blocks.unionByName(self.waiting)
        return tally(blocks, self.fates, request)

    def places(self, oids: Collection[int], windows: Mapping[int, CommitWindow]) -> dict[int, RowPlaces]:
        """Of each committed row of these relations."""
        return committed_places(self.changes().where(F.col("relation").isin(*oids)), self.fates, windows)

    def changes(self) -> DataFrame:
        """Blocks of all changes, those that waited too."""
        return self._of_kinds(Kind.CHANGE, Kind.WAITING)

    def logical_messages(self) -> DataFrame:
        """The logical decoding Messages that count, those that waited too; those of no transaction maybe repeatedly."""
        return logical_messages(self._of_kinds(Kind.LOGICAL, Kind.WAITING_LOGICAL), self.fates)

    def _of_kinds(self, new: Kind, waiting: Kind) -> DataFrame:
        found = of_kind(self.blocks, new)
        return found if self.waiting is None else found.unionByName(of_kind(self.waiting, waiting))

    def ended(self, which: Which | None = None) -> DataFrame:
        """The ordinary transactions within a file."""
        return ended_transactions(self.blocks, self.fates, which)

    def messages(self, *kinds: Kind) -> DataFrame:
        """A row per message of the batch's files: for what is rare."""
        return self._of_batch(message_rows(of_kind(self.blocks, *kinds)))

    def fated(self) -> DataFrame:
        """A row per message, of changes that waited, too, with its fate: for what is rare."""
        rows = self.messages(*Kind)
        return self._with_fates(rows if self.waiting is None else rows.unionByName(message_rows(self.waiting)))

    def fated_changes(self, oids: Collection[int] | None = None) -> DataFrame:
        """The same of changes, of all relations or some."""
        blocks = self.changes()
        if oids is not None:
            blocks = blocks.where(F.col("relation").isin(*oids))
        return self._with_fates(self._of_batch(message_rows(blocks)))

    def fated_content(self) -> DataFrame:
        """The same of changes and Messages, of the batch's files alone."""
        return self._with_fates(self.messages(Kind.CHANGE, Kind.LOGICAL))

    def _of_batch(self, rows: DataFrame) -> DataFrame:
        return rows.where(~F.col("file").isin(*self.left_out)) if self.left_out else rows

    def _with_fates(self, rows: DataFrame) -> DataFrame:
        return with_fates(self.spark, rows, self.assembly)


def assemble(blocks: DataFrame, scanned: Scanned, paths: Mapping[int, str], assembly: Assembly) -> None:
    """Takes the files into `assembly`, in order. Raises SequenceError."""
    for number in sorted(paths):
        try:
            assembly.add_file(scanned.scans[number], scanned.controls.get(number, []))
        except SequenceError as error:
            raise SequenceError(f"{paths[number]}: {error}") from None
    _replace_streams(blocks, paths, assembly)


def _replace_streams(blocks: DataFrame, paths: Mapping[int, str], assembly: Assembly) -> None:
    """After a reconnect the server may send as an ordinary transaction what it had begun to stream."""
    begun = assembly.streams_begun()
    if not begun:
        return
    ends = message_rows(of_kind(blocks, Kind.COMMIT), ["top_xid", "file", "unit"])
    found = ends.where(F.col("top_xid").isin(*begun)).toArrow().to_pylist()
    assembly.replace_streams((row["top_xid"], (row["file"], row["unit"])) for row in found if row["file"] in paths)


def with_fates(spark: SparkSession, rows: DataFrame, assembly: Assembly) -> DataFrame:
    """Change rows with `fate`, `scope` and the commit of their transaction."""
    units = [
        {
            "file": file,
            "unit": unit,
            "of_unit": outcome.fate.value,
            "unit_lsn": outcome.commit_lsn,
            "unit_ts": outcome.commit_ts,
            "unit_xid": outcome.xid,
            "scope": outcome.scope,
            "aborted": list(outcome.aborted_subxids),
        }
        for outcome in (*assembly.outcomes, *assembly.open_outcomes())
        for file, unit in outcome.units
    ]
    marks = [{"file": mark.file, "stretch": mark.stretch, "mark": mark.lsn} for mark in assembly.watermarks]
    of_units = frame(spark, pa.Table.from_pylist(units, _OF_UNITS))
    of_stretches = frame(spark, pa.Table.from_pylist(marks, _OF_STRETCHES))
    return joined_with_fates(rows, of_units, of_stretches, assembly.origins)


def joined_with_fates(rows: DataFrame, of_units: DataFrame, of_stretches: DataFrame, origins: Origins) -> DataFrame:
    """`of_units`: file, unit, of_unit (the fate), unit_lsn, unit_ts, unit_xid, scope, aborted, of every unit that has
    an outcome of its own. `of_stretches`: file, stretch, mark, of those with a watermark."""
    joined = rows.join(F.broadcast(of_units), ["file", "unit"], "left")
    joined = joined.join(F.broadcast(of_stretches), ["file", "stretch"], "left")
    has_own = F.col("of_unit").isNotNull()
    of_stretch = F.when(F.col("commit_lsn") <= F.col("mark"), Fate.RESENT.value)
    of_stretch = of_stretch.when(is_refused(origins), Fate.REFUSED.value).otherwise(Fate.COMMITTED.value)
    was_aborted = F.coalesce(F.array_contains("aborted", F.col("xid")), F.lit(False))
    decided = {
        "fate": F.when(was_aborted, Fate.ABORTED.value).otherwise(F.coalesce("of_unit", of_stretch)),
        "commit_lsn": F.when(has_own, F.col("unit_lsn")).otherwise(F.col("commit_lsn")),
        "commit_ts": F.when(has_own, F.col("unit_ts")).otherwise(F.col("commit_ts")),
        "top_xid": F.when(has_own, F.col("unit_xid")).otherwise(F.col("top_xid")),
    }
    kept = [name for name in MESSAGE_SCHEMA.names if name not in decided]
    return joined.select(*kept, "scope", *(column.alias(name) for name, column in decided.items()))


def is_refused(origins: Origins) -> Column:
    """Of rows with the `origin` of their transaction, NULL if it is local."""
    refused = F.col("origin").isin(*origins.skipped)
    if origins.accepted is not None:
        refused |= ~F.col("origin").isin(*origins.accepted)
    return F.coalesce(refused, F.lit(False))


def committed(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("fate") == Fate.COMMITTED.value)


def behind(rows: DataFrame, reached: Mapping[int, int]) -> DataFrame:
    """Without the commits that tables have already: by OID, the last one."""
    for oid, lsn in reached.items():
        rows = rows.where((F.col("relation") != oid) | (F.col("commit_lsn") > lsn))
    return rows


def count_changes(rows: DataFrame, history: RelationHistory) -> dict[int, TableChanges]:
    """By OID, of committed rows with the outcome of their transactions: little comes to the driver, whatever their
    changes."""
    tag = F.col("tag")
    position = F.struct("commit_lsn", "file", "ordinal")
    unchanged = F.col("unchanged").isNotNull()
    moves = unchanged & (F.col("old_kind") == "K")
    counted = rows.groupBy("relation").agg(
        *(F.sum((tag == t).cast("long")).alias(t) for t in CHANGE_TAGS),
        F.max(F.when(tag == "T", position)).alias("truncated_at"),
        F.array_distinct(F.flatten(F.collect_set("unchanged"))).alias("unchanged"),
        F.coalesce(F.bool_or(moves), F.lit(False)).alias("moves_toast"),
        F.max(position).alias("last_row"),
    )
    counts = {row.relation: row for row in counted.collect()}
    runs = _runs(rows, history, counts)
    return {
        oid: TableChanges(
            oid,
            row.I,
            row.U,
            row.D,
            row.T,
            None if row.truncated_at is None else tuple(row.truncated_at),
            frozenset(row.unchanged),
            row.moves_toast,
            runs=runs[oid],
            last_row=tuple(row.last_row),
        )
        for oid, row in counts.items()
    }


def _runs(rows: DataFrame, history: RelationHistory, oids: Iterable[int]) -> dict[int, tuple[Run, ...]]:
    versions = {oid: history.versions(oid) for oid in oids}
    several = {oid: each for oid, each in versions.items() if len(each.relations) > 1}
    found = {oid: tuple(Run((0, 0, 0), relation) for relation in each.relations) for oid, each in versions.items()}
    if not several:
        return found
    spans = version_spans(rows, several)
    return found | runs_of({oid: spans.get(oid, ()) for oid in several}, several, partial(row_places, rows))


def rows_to_apply(rows: DataFrame, changes: TableChanges, segment: Segment, with_truncates: bool = False) -> DataFrame:
    """The rows of one relation in a segment, since it was last truncated, as changes.events takes them."""
    of_table = rows.where(F.col("relation") == changes.oid)
    if not with_truncates:
        of_table = of_table.where(F.col("tag") != "T")
    if changes.truncated_at is not None:
        of_table = of_table.where(_is_behind(changes.truncated_at, False))
    if segment.start is not None:
        of_table = of_table.where(_is_behind(segment.start, True))
    if segment.end is not None:
        of_table = of_table.where(~_is_behind(segment.end, True))
    return of_table.select(*ROW_SCHEMA.names)


def _is_behind(place: Place, or_there: bool) -> Column:
    lsn, file, ordinal = (F.lit(part) for part in place)
    further = F.col("ordinal") >= ordinal if or_there else F.col("ordinal") > ordinal
    later = (F.col("file") > file) | ((F.col("file") == file) & further)
    return (F.col("commit_lsn") > lsn) | ((F.col("commit_lsn") == lsn) & later)

"""Files found and looked into by Spark, wherever it reads them from."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest.listing import list_landing, reading_files, size_limit
from pgoutput_etl.ingest.scan import file_contents, per_file
from pgoutput_etl.inspection.file_scan import FileInspection, FragmentCounts, commits, count, ends, inspect_file
from pgoutput_etl.inspection.message_lines import InspectionContext, print_messages
from pgoutput_etl.landing.fingerprint import LandedFile, ScanTask
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.transactions.outcome import FragmentId
from pgoutput_etl.transactions.status_lookup import Integers, StatusLookup

# What goes between Spark's workers and the driver, both of them ours: a Look or a Counted, pickled.
_INSPECTIONS = pa.schema([("file", pa.int64()), ("told", pa.binary()), ("heads", pa.binary())])

_PRINTED = pa.schema([("file", pa.int64()), ("told", pa.binary())])

_LINES = pa.schema([("file", pa.int64()), ("part", pa.int64()), ("lines", pa.list_(pa.string()))])

_LINES_TOGETHER = 4096


def list_on_spark(spark: SparkSession, paths: Iterable[str]) -> list[LandedFile]:
    """The files that are named, all below folders that are, and all that globs match. Raises ConfigError for a path
    that there is nothing of."""
    found: dict[str, LandedFile] = {}
    for path in paths:
        try:
            with reading_files([path]):
                found |= {file.path: file for file in list_landing(spark, path).files()}
        except ConfigError:
            raise ConfigError(f"there is no {path}") from None
    return list(found.values())


@dataclass(slots=True)
class SparkRunner:
    """See inspection.Runner. _kept: what was scanned, and of which of it the numbers count."""

    spark: SparkSession
    framing: Framing = Framing.AUTO
    _kept: list[tuple[DataFrame, frozenset[int]]] = field(default_factory=list)

    def __enter__(self) -> SparkRunner:
        return self

    def __exit__(self, *_: object) -> None:
        for frame, _numbers in self._kept:
            unpersist(frame)

    def scan(self, tasks: Mapping[str, ScanTask]) -> dict[int, FileInspection]:
        limit, framing = size_limit(self.spark), self.framing
        too_large = {path: task for path, task in tasks.items() if task.size > limit}
        inspections = {
            task.number: FileInspection(
                task.number, error=f"{path} has {task.size:,} bytes, and at most {limit:,} can be read"
            )
            for path, task in too_large.items()
        }
        of_paths = {path: task for path, task in tasks.items() if path not in too_large}
        numbers = frozenset(task.number for task in tasks.values())
        self._forget(numbers)
        if not of_paths:
            return inspections

        def scanned(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for path, content in per_file(batches):
                found, heads = inspect_file(path, content, of_paths[path], framing, limit)
                row = {"file": found.number, "told": pickle.dumps(found), "heads": heads}
                yield pa.RecordBatch.from_pylist([row], _INSPECTIONS)

        with reading_files(of_paths):
            frame = file_contents(self.spark, of_paths).mapInArrow(scanned, spark_schema(_INSPECTIONS))
            frame = persist(frame, StorageLevel.MEMORY_AND_DISK)
            self._kept.append((frame, numbers))
            found = frame.select("told").toArrow().to_pylist()
        return inspections | {each.number: each for each in (pickle.loads(row["told"]) for row in found)}

    def _forget(self, numbers: frozenset[int]) -> None:
        for frame, of_frame in self._kept:
            if of_frame <= numbers:
                unpersist(frame)
        self._kept = [(frame, of_frame - numbers) for frame, of_frame in self._kept if not of_frame <= numbers]

    def ends(self, xids: frozenset[int]) -> list[tuple[int, FragmentId]]:
        found = self._run(lambda heads: ends(heads, xids))
        return [end for _, of_file in found for end in of_file]

    def count(self, statuses: StatusLookup, held_from: Mapping[int, int]) -> dict[int, FragmentCounts]:
        held = dict(held_from)
        return dict(self._run(lambda heads: count(heads, statuses, held)))

    def commits(self, statuses: StatusLookup) -> dict[int, tuple[Integers, Integers, Integers]]:
        return dict(self._run(lambda heads: commits(heads, statuses)))

    def _run(self, question: Callable[[bytes], Any]) -> Iterator[tuple[int, Any]]:
        def answered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for file, heads in zip(batch.column("file").to_pylist(), batch.column("heads"), strict=True):
                    row = {"file": file, "told": pickle.dumps(question(heads.as_py()))}
                    yield pa.RecordBatch.from_pylist([row], _PRINTED)

        for frame, numbers in self._kept:
            kept = frame.where(F.col("file").isin(*numbers)).select("file", "heads")
            for row in kept.mapInArrow(answered, spark_schema(_PRINTED)).toArrow().to_pylist():
                yield row["file"], pickle.loads(row["told"])

    def print_messages(self, contexts: Sequence[InspectionContext], emit: Callable[[str], object]) -> None:
        of_paths, limit = {context.path: context for context in contexts}, size_limit(self.spark)
        if not of_paths:
            return

        def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for path, content in per_file(batches):
                lines: list[str] = []
                context = of_paths[path]
                print_messages(context, content, lines.append, limit)
                for begin in range(0, len(lines), _LINES_TOGETHER):
                    row = {"file": context.file, "part": begin, "lines": lines[begin : begin + _LINES_TOGETHER]}
                    yield pa.RecordBatch.from_pylist([row], _LINES)

        with reading_files(of_paths):
            frame = file_contents(self.spark, of_paths).mapInArrow(told, spark_schema(_LINES)).orderBy("file", "part")
            for row in frame.toLocalIterator():
                for line in row["lines"]:
                    emit(line)

"""Inspects files with Spark, on any storage that Spark reads."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest.binary_files import map_files
from pgoutput_etl.ingest.listing import list_landing, reading_files, size_limit
from pgoutput_etl.inspection.file_scan import FileInspection, inspect_file
from pgoutput_etl.inspection.message_lines import InspectionContext, print_messages
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import LandedFile, ScanTask
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.platform import persist, unpersist

T = TypeVar("T")

# result is a pickled value; pickle is safe between this package's own driver and workers.
_INSPECTIONS = pa.schema([("file", pa.int64()), ("result", pa.binary()), ("heads", pa.binary())])

_RESULTS = pa.schema([("file", pa.int64()), ("result", pa.binary())])

_LINES = pa.schema([("file", pa.int64()), ("part", pa.int64()), ("lines", pa.list_(pa.string()))])

_LINES_PER_ROW = 4096


def list_on_spark(spark: SparkSession, paths: Iterable[str]) -> Listing:
    """Named files, files below folders, and matches of globs. Raises ConfigError if a path matches nothing."""
    files: dict[str, LandedFile] = {}
    others: dict[str, str] = {}
    for path in paths:
        try:
            with reading_files([path]):
                listing = list_landing(spark, path)
        except ConfigError:
            raise ConfigError(f"{path} does not exist") from None
        files |= {file.path: file for file in listing.files()}
        others |= listing.not_plain
    return Listing.of(files.values(), others)


@dataclass(slots=True)
class SparkRunner:
    """See inspection.Runner. _scans: persisted scans, each with the numbers of the files that it is the newest scan
    of."""

    spark: SparkSession
    framing: Framing = Framing.AUTO
    _scans: list[tuple[DataFrame, frozenset[int]]] = field(default_factory=list)

    def __enter__(self) -> SparkRunner:
        return self

    def __exit__(self, *_: object) -> None:
        for frame, _numbers in self._scans:
            unpersist(frame)

    def scan(self, tasks: Mapping[str, ScanTask]) -> dict[int, FileInspection]:
        limit, framing = size_limit(self.spark), self.framing
        readable = {path: task for path, task in tasks.items() if task.size <= limit}
        errors = {
            task.number: f"{path} has {task.size:,} bytes, and at most {limit:,} can be read"
            for path, task in tasks.items()
            if path not in readable
        }
        inspections = {number: FileInspection(number, error=error) for number, error in errors.items()}
        numbers = frozenset(task.number for task in tasks.values())
        for frame, own in self._scans:
            if own <= numbers:
                unpersist(frame)
        self._scans = [(frame, own - numbers) for frame, own in self._scans if not own <= numbers]
        if not readable:
            return inspections

        def inspect(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
            for path, content in files:
                inspection, heads = inspect_file(path, content, readable[path], framing, limit)
                row = {"file": inspection.number, "result": pickle.dumps(inspection), "heads": heads}
                yield pa.RecordBatch.from_pylist([row], _INSPECTIONS)

        with reading_files(readable):
            sizes = {path: task.size for path, task in readable.items()}
            frame = map_files(self.spark, readable, inspect, _INSPECTIONS, sizes)
            frame = persist(frame, StorageLevel.MEMORY_AND_DISK)
            self._scans.append((frame, numbers))
            results = [pickle.loads(row["result"]) for row in frame.select("result").toArrow().to_pylist()]
        return inspections | {inspection.number: inspection for inspection in results}

    def query(self, query: Callable[[bytes], T]) -> dict[int, T]:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for file, heads in zip(batch.column("file").to_pylist(), batch.column("heads"), strict=True):
                    row = {"file": file, "result": pickle.dumps(query(heads.as_py()))}
                    yield pa.RecordBatch.from_pylist([row], _RESULTS)

        results: dict[int, T] = {}
        for frame, numbers in self._scans:
            newest = frame.where(F.col("file").isin(*numbers)).select("file", "heads")
            rows = newest.mapInArrow(run, spark_schema(_RESULTS)).toArrow().to_pylist()
            results |= {row["file"]: pickle.loads(row["result"]) for row in rows}
        return results

    def print_messages(self, contexts: Sequence[InspectionContext], emit: Callable[[str], object]) -> None:
        by_path, limit = {context.path: context for context in contexts}, size_limit(self.spark)
        if not by_path:
            return

        def print_lines(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
            for path, content in files:
                lines: list[str] = []
                context = by_path[path]
                print_messages(context, content, lines.append, limit)
                for begin in range(0, len(lines), _LINES_PER_ROW):
                    row = {"file": context.file, "part": begin, "lines": lines[begin : begin + _LINES_PER_ROW]}
                    yield pa.RecordBatch.from_pylist([row], _LINES)

        with reading_files(by_path):
            lines = map_files(self.spark, by_path, print_lines, _LINES)
            for row in lines.orderBy("file", "part").toLocalIterator():
                for line in row["lines"]:
                    emit(line)

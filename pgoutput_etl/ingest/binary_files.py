"""Reads landed files and scans them on executors, with binaryFile or, if they are local, directly."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl import plain_file
from pgoutput_etl.compression import MAX_SIZE, read_content
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest.executors import pack_blocks
from pgoutput_etl.ingest.listing import cores_of, even_parts, local_root, size_limit
from pgoutput_etl.landing.fingerprint import Hashes, KnownContents, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_error, scan_part
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind
from pgoutput_etl.scan.landed_tuples import RereadError, TupleFile
from pgoutput_etl.scan.small_files import SmallFiles
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import frame, is_connect
from pgoutput_etl.spark.workers import freeze_modules, is_first_scan

_HADOOP_GLOB = str.maketrans({c: "\\" + c for c in "\\*?[]{}"})

# From this size of a local file, in bytes, blocks leave the tuples in the file. Reopening a smaller file takes longer
# than copying its tuples.
LEAVES_FROM = 1 << 20

_EXTRACTS = pa.schema([("file", pa.int64()), ("offset", pa.int64()), ("bytes", pa.binary())])


def literal_paths(paths: Iterable[str]) -> list[str]:
    """Escapes paths, so that Spark doesn't interpret any as a glob."""
    return [path.translate(_HADOOP_GLOB) for path in paths]


def map_files(
    spark: SparkSession,
    paths: Collection[str],
    read: Callable[[Iterator[tuple[str, bytes]]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
    sizes: Mapping[str, int] = MappingProxyType({}),
    may_be_gone: bool = False,
    landing: str | None = None,
) -> DataFrame:
    """The rows that `read` produces, on executors, from the files' paths and stored bytes. sizes: file sizes in bytes,
    used to make tasks of equal size. may_be_gone: skips files that no longer exist. landing: the folder or glob with
    which the files were listed; None if the user, or this package, named each file's folder.

    Workers open local files themselves. Getting the bytes through Java would take several times as long, and several
    times their size in Java's heap.
    """
    if paths and all(local_path(path) is not None for path in paths):
        parts = even_parts(paths, sizes, cores_of(spark))
        root = None if landing is None else local_root(spark, landing)

        def read_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            chosen = (parts[i] for batch in batches for i in batch.column(0).to_pylist())
            return read(_local_files(chosen, may_be_gone, root))

        return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read_parts, spark_schema(schema))
    reader = spark.read.format("binaryFile").option("ignoreMissingFiles", str(may_be_gone).lower())
    contents = reader.load(literal_paths(paths)).select("path", "content")
    return contents.mapInArrow(lambda batches: read(_contents(batches)), spark_schema(schema))


def read_file(spark: SparkSession, path: str, landing: str | None = None) -> bytes:
    """A file's stored bytes. landing: as in map_files. Raises PlainFileError, or FileNotFoundError if it is missing."""
    local = local_path(path)
    if local is not None and not is_connect(spark):
        return plain_file.read(local, None if landing is None else local_root(spark, landing), MAX_SIZE)
    try:
        rows = spark.read.format("binaryFile").load(literal_paths([path])).select("content").collect()
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise FileNotFoundError(path) from None
    return bytes(rows[0]["content"])


def local_path(path: str) -> str | None:
    """The local path of a file that Spark lists as `path`; None if it isn't on this machine's file system."""
    return path.removeprefix("file:") if path.startswith("file:/") else None


def _local_files(parts: Iterable[list[str]], may_be_gone: bool, root: str | None) -> Iterator[tuple[str, bytes]]:
    freeze_modules()
    for part in parts:
        for path in part:
            try:
                content = plain_file.read(path.removeprefix("file:"), root, MAX_SIZE)
            except FileNotFoundError:
                if not may_be_gone:
                    raise
            else:
                yield path, content


def _contents(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, bytes]]:
    freeze_modules()
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            yield path.as_py(), content.as_py()


def scan_files(
    spark: SparkSession,
    tasks: Mapping[str, ScanTask],
    known: KnownContents,
    framing: Framing,
    salvages: bool,
    mask: Callable[[pa.RecordBatch], pa.RecordBatch] | None,
    landing: str,
    leaves_tuples: bool = True,
) -> DataFrame:
    """Blocks (BLOCK_SCHEMA) of the new messages in the files, masked by `mask`. tasks: by path. landing: as in
    map_files.

    An unreadable file becomes a single row with ERROR_TAG; with `salvages`, only if nothing in it is readable. With
    `leaves_tuples`, blocks leave unmasked tuples in local files. Don't use that with Spark Connect, whose client may
    read blocks but not the files.

    Jobs within `first_scan` compute the blocks for the first time. A later job computes them only if they were lost
    with an executor. By then a file may have been replaced, so it is read again only if the task has its hash;
    otherwise, or if it has changed, the job fails with a RereadError.
    """
    max_size = size_limit(spark)
    leaves_from = LEAVES_FROM if leaves_tuples and mask is None and not is_connect(spark) else None
    # Pickled separately, because every Spark task gets all of them but reads only a few.
    pickled = {path: pickle.dumps(task) for path, task in tasks.items()}

    def scan(files: Iterator[tuple[str, bytes]], landed: dict[int, TupleFile]) -> Iterator[pa.RecordBatch]:
        is_first, small = is_first_scan(), SmallFiles()
        for path, content in files:
            task, local = pickle.loads(pickled[path]), local_path(path)
            if not is_first and task.known_part is None:
                raise RereadError(f"{path}: an executor was lost with the messages of this file. Run again")
            stay_from = None if local is None else leaves_from
            try:
                scanned = scan_part(path, content, task, known, framing, salvages, max_size, False, stay_from, small)
            except ArchiveError as error:
                if not is_first:
                    raise RereadError(str(error)) from error
                yield scan_error(error).note(task.number)
                continue
            if local is not None and not scanned.has_tuples:
                landed[task.number] = TupleFile.at(local, Framing(scanned.summary.framing))
            yield from small.batches_with(scanned)
        yield from small.rest()

    def pack(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
        landed: dict[int, TupleFile] = {}
        rows = scan(files, landed)
        return pack_blocks(rows if mask is None else map(mask, rows), BlockKind.CHANGE, landed)

    if not tasks:
        return frame(spark, BLOCK_SCHEMA.empty_table())
    sizes = {path: task.size for path, task in tasks.items()}
    return map_files(spark, tasks, pack, BLOCK_SCHEMA, sizes, landing=landing)


def extract_messages(spark: SparkSession, ranges: Mapping[str, Iterable[tuple[int, int, int]]]) -> DataFrame:
    """The bytes of files between (decompressed) offsets. ranges: by path, (file number, begin, end)."""
    max_size = size_limit(spark)

    def extract(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
        for path, content in files:
            data = read_content(content, path, max_size).data
            for file, begin, end in ranges[path]:
                row = {"file": file, "offset": begin, "bytes": data[begin:end]}
                yield pa.RecordBatch.from_pylist([row], _EXTRACTS)

    return map_files(spark, ranges, extract, _EXTRACTS, may_be_gone=True)


def find_contents(
    spark: SparkSession, paths: Collection[str], known: KnownContents, landing: str
) -> dict[int, list[str]]:
    """By number in `known`, the files that begin with that content, regardless of their compression."""

    max_size = size_limit(spark)

    def find(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
        for path, content in files:
            try:
                match = known.match(path, Hashes(read_content(content, path, max_size).data))
            except ArchiveError:
                continue
            if match.prefix is not None:
                yield pa.RecordBatch.from_pylist([{"file": match.prefix.number, "path": path}], schema)

    schema = pa.schema([("file", pa.int64()), ("path", pa.string())])
    matches: dict[int, list[str]] = {}
    if paths:
        for row in map_files(spark, paths, find, schema, landing=landing).toArrow().to_pylist():
            matches.setdefault(row["file"], []).append(row["path"])
    return matches

"""Searches the bytes of files for texts: as stored, decompressed, and in the values of Parquet files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pgoutput_etl.compression import read_content
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest.binary_files import map_files
from pgoutput_etl.ingest.listing import reading_files
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.work.erasure.report import Remnant

_FOUND = pa.schema([("path", pa.string()), ("text", pa.int64()), ("count", pa.int64())])

_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True)
class ByteSearch:
    """texts: each with its number in the request."""

    spark: SparkSession
    texts: Mapping[str, int]

    def landed(self, sizes: Mapping[str, int]) -> list[Remnant]:
        """sizes: file sizes in bytes, by path. Raises ArchiveError if a path is no longer a plain file."""
        with reading_files(sizes):
            return self._run(counts_in_landed, sizes)

    def folders(self, folders: Collection[str]) -> tuple[dict[str, int], list[Remnant]]:
        """The sizes of all files below the folders, including hidden ones, and the texts found in them."""
        sizes = {path: size for folder in folders for path, size in ObjectFolder(self.spark, folder).all_files()}
        return sizes, self._run(lambda content, _, texts: counts_in_table(content, texts), sizes)

    def _run(
        self, counts: Callable[[bytes, str, Sequence[str]], dict[int, int]], sizes: Mapping[str, int]
    ) -> list[Remnant]:
        """Searches the files for the texts, in a Spark job. counts: a function like `counts_in_landed`."""
        texts, numbers = list(self.texts), list(self.texts.values())
        if not sizes or not texts:
            return []

        def search(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
            for path, content in files:
                yield _found(path, counts(content, path, texts))

        found: Counter[tuple[str, int]] = Counter()
        for row in map_files(self.spark, sizes, search, _FOUND, sizes).toArrow().to_pylist():
            found[row["path"], numbers[row["text"]]] += row["count"]
        return [Remnant(path, f"text {number} of the request", count) for (path, number), count in found.items()]


def _found(path: str, counts: Mapping[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"path": path, "text": n, "count": c} for n, c in counts.items()], _FOUND)


def counts_in_landed(content: bytes, path: str, texts: Sequence[str]) -> dict[int, int]:
    """The number of occurrences of each text, by its number, in a landed file as stored and decompressed."""
    try:
        data = read_content(content, path).data
    except ArchiveError:  # not compressed, despite its name
        data = content
    return _counts([data, *([content] if content != data else [])], texts)


def counts_in_table(content: bytes, texts: Sequence[str]) -> dict[int, int]:
    """Like `counts_in_landed`. content: a file of a Delta table."""
    values = list(_parquet_values(content)) if content[:4] == content[-4:] == _PARQUET else []
    return _counts([content, *values], texts)


def _counts(parts: Sequence[bytes], texts: Sequence[str]) -> dict[int, int]:
    counts = {n: sum(part.count(form) for part in parts for form in _forms(text)) for n, text in enumerate(texts)}
    return {n: count for n, count in counts.items() if count}


def _forms(text: str) -> set[bytes]:
    """The text, and its forms when JSON escapes it once and twice: statistics in Delta's log are JSON within JSON."""
    forms = {text}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=is_ascii)[1:-1] for form in forms for is_ascii in (True, False)}
    return {form.encode() for form in forms}


def _parquet_values(content: bytes) -> Iterator[bytes]:
    for batch in pq.ParquetFile(pa.BufferReader(content)).iter_batches():
        for column in batch.columns:
            for leaf in _leaves(column):
                yield b"\0".join(value for value in leaf.cast(pa.large_binary()).to_pylist() if value is not None)


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    """The texts and byte strings in an array of any type."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield from _leaves(array.dictionary_decode())
    elif pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _leaves(child)
    elif pa.types.is_map(kind):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves(pc.list_flatten(array))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_string(kind):
        yield array

"""Reads small files of ordinary messages, with the rows of many in one batch.

A batch of rows takes as long to build as scanning thousands of messages, so building one for each file would take most
of the time of ten thousand files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from pgoutput_etl import jit
from pgoutput_etl.scan.fast.handoff import FastPath
from pgoutput_etl.scan.fast.messages import MOST_MESSAGES
from pgoutput_etl.scan.fast.row_arrays import RowArrays
from pgoutput_etl.scan.fast.rows import FastScanner, Scratch
from pgoutput_etl.scan.message_row import LOGICAL_TAG, batch_of, with_catalog_tag
from pgoutput_etl.scan.partition_roots import partition_roots
from pgoutput_etl.scan.request import ScanRequest, ScanResult
from pgoutput_etl.scan.row_buffer import BATCH_ROWS
from pgoutput_etl.scan.scanner import Scanner

_MOST_BYTES = 1 << 18  # of a small file

_BATCH_BYTES = 1 << 19

_ORIGIN_TAG = "O"


@dataclass(slots=True)
class SmallFiles:
    """The rows of files that were read and not yielded yet. They are yielded in the order of the files."""

    _scratch: Scratch = field(default_factory=Scratch)
    _arrays: RowArrays | None = None
    _read: list[tuple[ScanResult, int]] = field(default_factory=list)  # with the number of its first row
    _ready: list[pa.RecordBatch] = field(default_factory=list)

    def read(self, request: ScanRequest) -> ScanResult | None:
        """The result for a small file in which the compiled loops accept all messages; None for any other file."""
        if not jit.AVAILABLE or not request.with_tuples or request.with_census or request.begins_in_stream:
            return None
        if len(request.data) > _MOST_BYTES:
            return None
        scanner = FastScanner(request.data, request.framing, request.file, self._scratch, MOST_MESSAGES)
        scanner.find(request.start, in_stream=False)
        if not scanner.fields.to_the_end or not scanner.fields.messages:
            return None
        arrays, state = self._with_room(scanner), Scanner(request, begins_in_stream=False)
        rows = FastPath(state).read_whole(scanner, arrays)
        is_certain = state.head_is_certain or request.begins_in_stream is not None
        if rows is None or not is_certain or _ORIGIN_TAG in state.summary.messages:
            return None
        state.end_file()
        result = replace(state.result(), is_together=True)
        self._read.append((result, arrays.rows))
        scanner.append(arrays, rows)
        return result

    def _with_room(self, scanner: FastScanner) -> RowArrays:
        """The arrays for the rows of the messages that the scanner found."""
        arrays = self._arrays
        if arrays is None or arrays.has_lsn != scanner.has_lsn or not arrays.has_room(scanner.fields.messages):
            self._end_batch()
            self._arrays = arrays = RowArrays(MOST_MESSAGES, scanner.has_lsn)
        return arrays

    def batches_with(self, scanned: ScanResult) -> Iterator[pa.RecordBatch]:
        """The rows to yield after a file was read, by `read` or by itself."""
        arrays = self._arrays
        is_full = arrays is not None and (arrays.rows >= BATCH_ROWS or arrays.size >= _BATCH_BYTES)
        if is_full or not scanned.is_together:
            self._end_batch()
        if not scanned.is_together:
            self._ready += scanned.batches
        yield from self._taken()

    def rest(self) -> Iterator[pa.RecordBatch]:
        self._end_batch()
        yield from self._taken()

    def _taken(self) -> list[pa.RecordBatch]:
        ready, self._ready = self._ready, []
        return ready

    def _end_batch(self) -> None:
        arrays, read = self._arrays, self._read
        self._arrays, self._read = None, []
        if arrays is None or not read:
            return
        batch = arrays.batch()
        for (scanned, first), end in zip(read, [*(first for _, first in read[1:]), arrays.rows], strict=True):
            if "R" in scanned.summary.messages:
                scanned.summary.roots = partition_roots([batch.slice(first, end - first)])
        if any(LOGICAL_TAG in scanned.summary.messages for scanned, _ in read):
            batch = with_catalog_tag(batch)
        self._ready += [batch, batch_of([scanned.note() for scanned, _ in read])]

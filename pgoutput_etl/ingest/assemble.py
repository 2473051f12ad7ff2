"""Runs transaction assembly on the driver over the summaries that the scans of a batch returned."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.ingest.executors import message_rows
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks
from pgoutput_etl.scan.blocks import UNPACKED_BY, BlockKind, unpacked
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ERROR_TAG, SUMMARY_TAG, ScanError
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import CONTROL_COLUMNS, Control, control_rows


@dataclass(frozen=True, slots=True)
class ScanOutput:
    """The driver's part of a scan by file number: summaries, control messages, and errors of files without them."""

    scans: dict[int, FileScan]
    controls: dict[int, list[Control]]
    errors: dict[int, ScanError]

    def select(self, numbers: Collection[int]) -> ScanOutput:
        """The scans and control messages of these files."""
        scans = {number: scan for number, scan in self.scans.items() if number in numbers}
        return ScanOutput(scans, {n: rows for n, rows in self.controls.items() if n in numbers}, {})


def collect_scans(blocks: ScannedBlocks) -> ScanOutput:
    """Collects one summary row per file, its Relation, Type, stream and two-phase messages, and the Commit of a
    transaction that began in an earlier file."""
    output = ScanOutput({}, {}, {})
    for block in blocks.collect(BlockKind.CONTROL, [*UNPACKED_BY]).to_pylist():
        rows = unpacked(block, ["file", *CONTROL_COLUMNS])
        for file, file_rows in _by_file(rows):
            output.controls.setdefault(file, []).extend(control_rows([file_rows]))
        for row in rows.filter(pc.is_in(rows.column("tag"), pa.array([SUMMARY_TAG, ERROR_TAG]))).to_pylist():
            if row["tag"] == SUMMARY_TAG:
                output.scans[row["file"]] = FileScan.from_json(row["body"])
            else:
                output.errors[row["file"]] = ScanError.from_json(row["body"])
    return output


def _by_file(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Runs of consecutive rows of one file."""
    files = rows.column("file").to_numpy()
    begins = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], len(files)], strict=True):
        yield int(files[begin]), rows.slice(begin, end - begin)


def assemble(blocks: ScannedBlocks, output: ScanOutput, paths: Mapping[int, str], assembly: Assembly) -> None:
    """Adds the files to `assembly` in order. Raises SequenceError."""
    for number in sorted(paths):
        try:
            assembly.add_file(output.scans[number], output.controls.get(number, []))
        except SequenceError as error:
            raise SequenceError(f"{paths[number]}: {error}") from None
    # After a reconnect, the server may send a transaction as an ordinary one that it had begun to stream.
    if begun := assembly.streams_begun():
        ends = message_rows(blocks.of_kind(BlockKind.COMMIT), ["top_xid", "file", "unit"])
        rows = ends.where(F.col("top_xid").isin(*begun)).toArrow().to_pylist()
        assembly.replace_streams((row["top_xid"], (row["file"], row["unit"])) for row in rows if row["file"] in paths)

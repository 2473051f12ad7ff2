"""Runs transaction assembly on the driver over the summaries that the scans of a batch returned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.ingest.executors import (
    message_rows,
    of_kind,
)
from pgoutput_etl.ingest.rows import _by_file
from pgoutput_etl.scan.blocks import BlockKind, unpacked
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ERROR_TAG, SUMMARY_TAG, ScanError
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import CONTROL_COLUMNS, Control, control_rows


@dataclass(frozen=True, slots=True)
class ScanOutput:
    """The driver's part of a scan, by the files' numbers: summaries, control messages, and why there are none."""

    scans: dict[int, FileScan]
    controls: dict[int, list[Control]]
    errors: dict[int, ScanError]

    def from_rows(self, numbers: Collection[int]) -> ScanOutput:
        """Without the other files."""
        scans = {number: scan for number, scan in self.scans.items() if number in numbers}
        return ScanOutput(scans, {n: rows for n, rows in self.controls.items() if n in numbers}, {})


def collect_scans(blocks: DataFrame) -> ScanOutput:
    """What is collected: one row per file, its Relation, Type, stream and two-phase messages, and the Commit of a
    transaction that an earlier file began."""
    scanned = ScanOutput({}, {}, {})
    of_driver = of_kind(blocks, BlockKind.CONTROL).select("rows", "head", "tuples").toArrow()
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


def assemble(blocks: DataFrame, scanned: ScanOutput, paths: Mapping[int, str], assembly: Assembly) -> None:
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
    ends = message_rows(of_kind(blocks, BlockKind.COMMIT), ["top_xid", "file", "unit"])
    found = ends.where(F.col("top_xid").isin(*begun)).toArrow().to_pylist()
    assembly.replace_streams((row["top_xid"], (row["file"], row["unit"])) for row in found if row["file"] in paths)

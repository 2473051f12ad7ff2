"""Assembles transactions on the driver, from the summaries that a batch's scans returned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import SequenceError
from pgoutput_etl.ingest.executors import iterate_blocks, message_rows
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks
from pgoutput_etl.landing.selection import EVERY_FILE_WAITS, without
from pgoutput_etl.scan.blocks import BlockKind, unpacked
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import ERROR_TAG, MESSAGE_SCHEMA, SUMMARY_TAG, ScanError
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import CONTROL_COLUMNS, Control, controls_of_files


@dataclass(frozen=True, slots=True)
class ScanOutput:
    """The part of a scan for the driver, by file number: summaries, control messages, and errors of unreadable
    files."""

    scans: dict[int, FileScan]
    controls: dict[int, list[Control]]
    errors: dict[int, ScanError]

    def select(self, numbers: Collection[int]) -> ScanOutput:
        """The summaries and control messages of these files."""
        scans = {number: scan for number, scan in self.scans.items() if number in numbers}
        return ScanOutput(scans, {n: rows for n, rows in self.controls.items() if n in numbers}, {})


def collect_scans(blocks: ScannedBlocks) -> ScanOutput:
    """Collects one summary row per file; its Relation, Type, stream, and two-phase messages; and the Commit of a
    transaction that began in an earlier file."""
    output = ScanOutput({}, {}, {})
    for block in blocks.collect(BlockKind.CONTROL).to_pylist():
        rows = unpacked(block, CONTROL_COLUMNS)
        for file, control in controls_of_files(rows):
            output.controls.setdefault(file, []).append(control)
        notes = rows.filter(pc.is_in(rows.column("tag"), pa.array([SUMMARY_TAG, ERROR_TAG])))
        for file, tag, body in zip(*(notes.column(name).to_pylist() for name in ("file", "tag", "body")), strict=True):
            if tag == SUMMARY_TAG:
                output.scans[file] = FileScan.from_json(body)
            else:
                output.errors[file] = ScanError.from_json(body)
    return output


def configured(assembly: Assembly, config: Config) -> Assembly:
    """The assembly, configured for transactions and catalog Messages."""
    assembly.origins = config.source.origins
    definitions, key = assembly.relations.definitions, config.source.catalog_key
    definitions.key = None if key is None else key.secret
    definitions.is_masked = partial(_is_masked, config)
    return assembly


def _is_masked(config: Config, schema: str, table: str, column: str) -> bool:
    return column in config.rule_for(schema, table).column_rules


def assemble(
    blocks: ScannedBlocks,
    output: ScanOutput,
    paths: Mapping[int, str],
    assembly: Assembly,
    unread: Mapping[int, frozenset[int] | None] | None = None,
) -> None:
    """Adds the files to `assembly` in order. unread: as in Batch. Raises SequenceError."""
    unread = unread or {}
    for number in sorted({*paths, *unread}):
        if number in unread:
            assembly.add_unread_file(number, unread[number])
            continue
        try:
            assembly.add_file(output.scans[number], output.controls.get(number, []))
        except SequenceError as error:
            raise SequenceError(f"{paths[number]}: {error}. {EVERY_FILE_WAITS}", without(paths[number])) from None
    # After a reconnect, the server may send a partly streamed transaction again as an ordinary one.
    if begun := assembly.streams_begun():
        rows = _ends(blocks, begun).to_pylist()
        assembly.replace_streams((row["top_xid"], (row["file"], row["unit"])) for row in rows if row["file"] in paths)


def _ends(blocks: ScannedBlocks, xids: Collection[int]) -> pa.Table:
    """The file and fragment that each ordinary transaction with one of these xids ends in."""
    names = ["top_xid", "file", "unit"]
    if blocks.local is None:
        ends = message_rows(blocks.of_kind(BlockKind.COMMIT), names)
        return ends.where(F.col("top_xid").isin(*xids)).toArrow()
    commits = blocks.collect(BlockKind.COMMIT).to_batches()
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
    found = pa.Table.from_batches([unpacked(block, names) for block in iterate_blocks(commits)], schema)
    return found.filter(pc.is_in(found.column("top_xid"), pa.array(sorted(xids), pa.int64())))

"""All change events of a table, including truncates, for modes that keep former values.

A mirror needs fewer: the last event of each key (compaction.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.events import INSERTED, MOVED_IN
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.errors import TableError
from pgoutput_etl.schema.table_shape import TIMESTAMP, UNREPRESENTABLE, TableShape
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.transactions.status_lookup import StatusLookup
from pgoutput_etl.types.printing import print_text

TRUNCATED = "T"

# A decompressed file has less than 2 GiB, and a message at least one byte.
MESSAGES_PER_FILE = 1 << 31

_MAX_FILES = 1 << 31

ROWS_PER_MESSAGE = 2


def every_event(rows: pa.RecordBatch, shape: TableShape) -> Iterator[pa.RecordBatch]:
    """Batches of shape.event_schema() from rows of events.ROW_SCHEMA, including truncates. A truncate has `_op` T, its
    position, and its transaction; other columns are NULL."""
    is_truncate = pc.equal(rows.column("tag"), TRUNCATED)
    if not pc.any(is_truncate).as_py():
        yield from event_batches(rows, shape)
        return
    changes = rows.filter(pc.invert(is_truncate))
    if changes.num_rows:
        yield from event_batches(changes, shape)
    yield _truncates(rows.filter(is_truncate), shape)


def _truncates(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    times = pc.add(rows.column("commit_ts"), POSTGRES_EPOCH_MICROSECONDS).cast(TIMESTAMP)
    values = {
        "_lsn": rows.column("commit_lsn"),
        "_file": rows.column("file"),
        "_ordinal": rows.column("ordinal"),
        "_ts": times,
        "_xid": rows.column("top_xid"),
        "_op": pa.repeat(pa.scalar(TRUNCATED), rows.num_rows),
    }
    schema = shape.event_schema()
    arrays = [values[f.name].cast(f.type) if f.name in values else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def every_event_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """Like `every_event`, from a table's blocks."""
    for block in blocks:
        yield from every_event(rows_in(block, statuses, window, with_truncates=True), shape)


def old_keys(events: pa.RecordBatch, shape: TableShape) -> pa.Array:
    """The old key of each V event: column names and PostgreSQL's texts, in the form of UNREPRESENTABLE. NULL for other
    events."""
    moved = pc.indices_nonzero(pc.equal(events.column("_op"), MOVED_IN))
    keys: list[list[dict[str, str | None]] | None] = [None] * events.num_rows
    unrepresentable = [
        {entry["key"]: entry["value"] for entry in entries or ()}
        for entries in events.column("_from_unrep").take(moved).to_pylist()
    ]
    texts = {}
    for i in shape.key:
        column = shape.columns[i]
        printed = print_text(column.type, events.column(f"f{i}").take(moved))
        texts[column.name] = [None if text is None else text.decode() for text in printed]
    for n, index in enumerate(moved.to_pylist()):
        others = unrepresentable[n]
        keys[index] = [{"key": name, "value": others.get(name, column[n])} for name, column in texts.items()]
    return pa.array(keys, UNREPRESENTABLE)


def sequence_numbers(events: pa.RecordBatch, shape: TableShape) -> pa.Array:
    """The values of `_pg_seq`: file number, message ordinal, and 1 for the INSERT of a bag's UPDATE.

    A snapshot's rows have a file number far below 0, because there may be more of them than a file has messages. Raises
    TableError if a number doesn't fit into 64 bits.
    """
    files = events.column("_file").to_numpy(zero_copy_only=False)
    messages = events.column("_ordinal").to_numpy(zero_copy_only=False)
    room = np.where(files < 0, -files, 1) * MESSAGES_PER_FILE  # up to the first number of file 0, or of the next file
    if ((files >= _MAX_FILES) | (files < -_MAX_FILES)).any() or ((messages < 0) | (messages >= room)).any():
        raise TableError(
            f"mode append numbers the changes of {_MAX_FILES:,} files of up to {MESSAGES_PER_FILE:,} messages, and "
            "this source has more: land the archive under another source.name, with a target of its own"
        )
    is_second = pc.equal(events.column("_op"), INSERTED).to_numpy(zero_copy_only=False) & shape.is_bag
    return pa.array((files * MESSAGES_PER_FILE + messages) * ROWS_PER_MESSAGE + is_second, pa.int64())

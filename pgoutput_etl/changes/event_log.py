"""All change events of a table, none left out, and its truncates as events among them.

What a mirror needs is less (superseded.py): the last event of each key. A table that keeps what was needs each one.
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

# A file has less than 2 GiB when it is decompressed, and a message at least a byte.
_MESSAGES_IN_A_FILE = 1 << 31

_MOST_FILES = 1 << 31

_ROWS_OF_A_MESSAGE = 2


def every_event(rows: pa.RecordBatch, shape: TableShape) -> Iterator[pa.RecordBatch]:
    """Batches of shape.event_schema() from rows of changes.ROW_SCHEMA, truncates among them. A truncate has `_op` T,
    where it stands and whose it is, and NULL in all else."""
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
    found = {
        "_lsn": rows.column("commit_lsn"),
        "_file": rows.column("file"),
        "_ordinal": rows.column("ordinal"),
        "_ts": times,
        "_xid": rows.column("top_xid"),
        "_op": pa.repeat(pa.scalar(TRUNCATED), rows.num_rows),
    }
    schema = shape.event_schema()
    arrays = [found[f.name].cast(f.type) if f.name in found else pa.nulls(rows.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def every_event_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """The same of a table's blocks."""
    for block in blocks:
        yield from every_event(rows_in(block, statuses, window, with_truncates=True), shape)


def old_keys(events: pa.RecordBatch, shape: TableShape) -> pa.Array:
    """Per event, of those that moved their row to another key: the names of the key's columns and PostgreSQL's text of
    what was in them, as UNREPRESENTABLE has entries. NULL for all others."""
    moved = pc.indices_nonzero(pc.equal(events.column("_op"), MOVED_IN))
    found: list[list[dict[str, str | None]] | None] = [None] * events.num_rows
    entries = events.column("_from_unrep").take(moved).to_pylist()
    odd = [{entry["key"]: entry["value"] for entry in of_event or ()} for of_event in entries]
    texts = {}
    for i in shape.key:
        column = shape.columns[i]
        printed = print_text(column.type, events.column(f"f{i}").take(moved))
        texts[column.name] = [None if text is None else text.decode() for text in printed]
    for n, place in enumerate(moved.to_pylist()):
        found[place] = [{"key": name, "value": odd[n].get(name, of[n])} for name, of in texts.items()]
    return pa.array(found, UNREPRESENTABLE)


def sequence_numbers(events: pa.RecordBatch, shape: TableShape) -> pa.Array:
    """Per event, `_pg_seq`: the file's number, the message's in it, and for the INSERT of a bag's UPDATE 1.

    A snapshot's rows have a file number far below 0, and may be more than a file has messages. Raises TableError for a
    number that 64 bits can't hold.
    """
    files = events.column("_file").to_numpy(zero_copy_only=False)
    messages = events.column("_ordinal").to_numpy(zero_copy_only=False)
    room = np.where(files < 0, -files, 1) * _MESSAGES_IN_A_FILE  # up to the first number of file 0, or of the next file
    if ((files >= _MOST_FILES) | (files < -_MOST_FILES)).any() or ((messages < 0) | (messages >= room)).any():
        raise TableError(
            f"mode append numbers the changes of {_MOST_FILES:,} files of up to {_MESSAGES_IN_A_FILE:,} messages, and "
            "this source has more: land the archive under another source.name, with a target of its own"
        )
    is_second = pc.equal(events.column("_op"), INSERTED).to_numpy(zero_copy_only=False) & shape.is_bag
    return pa.array((files * _MESSAGES_IN_A_FILE + messages) * _ROWS_OF_A_MESSAGE + is_second, pa.int64())

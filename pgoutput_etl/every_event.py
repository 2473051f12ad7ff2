"""All change events of a table, none left out, and its truncates as events among them.

What a mirror needs is less (superseded.py): the last event of each key. A table that keeps what was needs each one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes import MOVED_IN, POSTGRES_EPOCH_MICROSECONDS, TIMESTAMP, UNREPRESENTABLE, TableShape
from pgoutput_etl.fast_events import event_batches
from pgoutput_etl.fates import Fates
from pgoutput_etl.types.printing import print_text
from pgoutput_etl.windows import Window, rows_in

TRUNCATED = "T"


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
    blocks: Iterable[Mapping[str, Any]], fates: Fates, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """The same of a table's blocks."""
    for block in blocks:
        yield from every_event(rows_in(block, fates, window, with_truncates=True), shape)


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

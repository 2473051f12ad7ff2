"""Reads tables of modes history and append as the mirror that they describe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.modes import METADATA_COLUMNS
from pgoutput_etl.types.printing import print_text

Row = Mapping[str, Any]
NOTES = METADATA_COLUMNS[-1]


def counted(rows: Iterable[Row], names: Iterable[str] | None = None) -> Counter[tuple[str, ...]]:
    """Counts rows. Values compare by repr, which distinguishes -0.0 and NaN. names: all columns if None."""
    columns = None if names is None else list(names)
    return Counter(tuple(_comparable(row[name]) for name in columns or sorted(row)) for row in rows)


def _comparable(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return repr(sorted(value.items()))
    is_map = isinstance(value, list) and value and isinstance(value[0], tuple)
    return repr(sorted(value)) if is_map else repr(value)


def as_of(versions: Iterable[Row], lsn: int) -> list[Row]:
    """The Python version of the SQL query in docs/modes.md."""
    return [
        row
        for row in versions
        if row["_pg_valid_from_lsn"] <= lsn and (row["_pg_valid_to_lsn"] is None or row["_pg_valid_to_lsn"] > lsn)
    ]


def applied(changes: Iterable[Row], shape: TableShape) -> list[dict[str, Any]]:
    """Applies only the rows of a table in mode append, and returns the mirror's rows.

    `shape`: the final shape of the table. Keys are PostgreSQL's texts, as in `_pg_old_key`.
    """
    columns = [column.name for column in shape.columns]
    names = [*columns, *METADATA_COLUMNS]
    in_order = sorted(changes, key=lambda row: (row["_pg_commit_lsn"], row["_pg_seq"]))
    bag: list[dict[str, Any]] = []
    by_key: dict[tuple[Any, ...], dict[str, Any]] = {}
    for change in in_order:
        row = {name: change[name] for name in names}
        if change["_pg_op"] == "T":
            bag.clear()
            by_key.clear()
        elif shape.is_bag:
            _apply_to_bag(bag, change["_pg_op"], row, [c.name for c in shape.columns if not c.retired])
        else:
            _apply_to_keyed(by_key, change, row, shape)
    return bag if shape.is_bag else list(by_key.values())


def _apply_to_bag(bag: list[dict[str, Any]], op: str, row: dict[str, Any], columns: list[str]) -> None:
    if op == "I":
        bag.append(row)
        return
    content = _content(row, columns)
    newest = next((i for i in reversed(range(len(bag))) if _content(bag[i], columns) == content), None)
    if newest is not None:
        del bag[newest]


def _content(row: Row, columns: list[str]) -> tuple[str, ...]:
    notes = dict(row[NOTES] or {})
    return tuple(_comparable(row[name]) + repr(notes.get(name)) for name in columns)


def _apply_to_keyed(
    by_key: dict[tuple[Any, ...], dict[str, Any]], change: Row, row: dict[str, Any], shape: Any
) -> None:
    key = _key(row, shape)
    if change["_pg_op"] == "D":
        by_key.pop(key, None)
        return
    old = key if change["_pg_old_key"] is None else _old_key(change, shape)
    before = by_key.pop(old, None)
    notes = dict(row[NOTES] or {})
    for name in change["_pg_unchanged"] or ():
        known = {name: None} if before is None else dict(before[NOTES] or {})
        row[name] = None if before is None else before[name]
        notes |= {name: known[name]} if name in known else {}
    row[NOTES] = notes or None
    by_key[key] = row


def _key(row: Row, shape: TableShape) -> tuple[Any, ...]:
    notes = dict(row[NOTES] or {})
    return tuple(_same(notes.get(name) or _text(row[name], shape, i)) for i, name in _key_columns(shape))


def _old_key(change: Row, shape: TableShape) -> tuple[Any, ...]:
    texts = dict(change["_pg_old_key"])
    return tuple(_same(texts[name]) for _, name in _key_columns(shape))


def _key_columns(shape: TableShape) -> list[tuple[int, str]]:
    return [(i, shape.columns[i].name) for i in shape.key]


def _text(value: Any, shape: TableShape, place: int) -> str | None:
    import pyarrow as pa

    column_type = shape.columns[place].type
    (text,) = print_text(column_type, pa.array([value], column_type.arrow))
    return None if text is None else text.decode()


def _same(text: str | None) -> str | None:
    """A unique index treats 0 and -0 as equal."""
    return {"-0": "0", "{-0}": "{0}"}.get(text or "", text)

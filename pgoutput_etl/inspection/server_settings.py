"""Infers server settings from values, because no message contains them.

Samples each relation's first rows in a file, for types whose text depends on a setting. Only settings are stored, never
values.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.inspection.float_digits import DigitCounts
from pgoutput_etl.protocol.decoder import decode, read_tuple
from pgoutput_etl.protocol.messages import KIND_BINARY, KIND_TEXT, Relation, TupleData
from pgoutput_etl.scan.message_row import HEAD

_ROWS_PER_RELATION = 20

_ISO = re.compile(rb"\d{4,}-\d\d-\d\d(?: \d\d:\d\d:\d\d(?:\.\d+)?([+-]\d\d(?::\d\d){0,2})?)?(?: BC)?")

_POSTGRES_INTERVAL = re.compile(rb"(?:[+-]?\d+ (?:year|mon|day)s? ?)*(?:[+-]?\d+:\d\d:\d\d(?:\.\d+)?)?")

_INFINITE = (b"infinity", b"-infinity")


FORMAT, OTHER = "values", "other"

FLOAT_DIGITS = "extra_float_digits"

ROUNDED = (FLOAT_DIGITS, "0 or less")


SettingsSample = Counter[tuple[str, str]]  # number of values by (setting, value of the setting)


def sample_settings(batches: Iterable[pa.RecordBatch]) -> SettingsSample:
    """Samples a file's message rows (MESSAGE_SCHEMA). Rows without a Relation message in the file only reveal whether
    they are text or binary."""
    rows = list(batches)
    relations = _relations(rows)
    sample: SettingsSample = Counter()
    digits = DigitCounts()
    for oid, ordinal, new in _first_tuples(rows):
        entries = relations.get(oid, [])
        index = bisect_right(entries, ordinal, key=lambda entry: entry[0])
        relation = entries[index - 1][1] if index else None
        _add_settings(sample, new, relation)
        if relation is not None:
            digits.add(relation, new)
    if digits.beyond:
        sample[FLOAT_DIGITS, "1 or more"] = digits.beyond
    elif digits.show_rounding:
        sample[ROUNDED] = digits.at_limit
    return sample


def _relations(batches: list[pa.RecordBatch]) -> dict[int, list[tuple[int, Relation]]]:
    relations: dict[int, list[tuple[int, Relation]]] = {}
    for batch in batches:
        rows = batch.filter(pc.equal(batch.column("tag"), "R"))
        for row in rows.select(["ordinal", "unit", "xid", "body"]).to_pylist():
            if row["unit"] == HEAD and row["xid"] is None:
                continue  # the head may be within a stream segment, which isn't known yet
            relation = decode(row["body"], row["xid"] is not None)
            if isinstance(relation, Relation):
                relations.setdefault(relation.oid, []).append((row["ordinal"], relation))
    return relations


def _first_tuples(batches: list[pa.RecordBatch]) -> Iterator[tuple[int, int, TupleData]]:
    counts: Counter[int] = Counter()
    for batch in batches:
        relation = batch.column("relation").fill_null(-1).to_numpy(zero_copy_only=False)
        has_new = batch.column("new").is_valid().to_numpy(zero_copy_only=False)
        for oid in np.unique(relation[has_new]).tolist():
            room = _ROWS_PER_RELATION - counts[oid]
            indexes = np.flatnonzero(has_new & (relation == oid))[:room].tolist() if room > 0 else []
            counts[oid] += len(indexes)
            for i in indexes:
                yield oid, batch.column("ordinal")[i].as_py(), read_tuple(batch.column("new")[i].as_py())


def _add_settings(sample: SettingsSample, new: TupleData, relation: Relation | None) -> None:
    for kind in new.kinds:
        if kind in (KIND_TEXT, KIND_BINARY):
            sample[FORMAT, "text" if kind == KIND_TEXT else "binary"] += 1
    if relation is None or len(relation.columns) != len(new.kinds):
        return
    for column, kind, value in zip(relation.columns, new.kinds, new.values, strict=True):
        if kind == KIND_TEXT and value is not None:
            for setting in _infer_settings(column.type_oid, value):
                sample[setting] += 1


def _infer_settings(type_oid: int, value: bytes) -> list[tuple[str, str]]:
    if value in _INFINITE:
        return []
    match type_oid:
        case 1082 | 1114 | 1184:
            match = _ISO.fullmatch(value)
            style = ("DateStyle", OTHER if match is None else "ISO")
            zone = None if match is None else match[1]
            if zone is None:
                return [style]
            return [style, ("TimeZone", f"UTC{zone.decode('ascii') if zone.strip(b'+-0:') else ''}")]
        case 1186:
            return [("IntervalStyle", _interval_style(value))]
        case 17:
            return [("bytea_output", "hex" if value.startswith(b"\\x") else "escape")]
        case _:
            return []


def _interval_style(value: bytes) -> str:
    if value.startswith((b"P", b"-P")):
        return "iso_8601"
    if value.startswith(b"@"):
        return "postgres_verbose"
    return "postgres" if value and _POSTGRES_INTERVAL.fullmatch(value) else OTHER

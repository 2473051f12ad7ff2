"""Stored rows as PostgreSQL's texts, and canonical texts."""

from __future__ import annotations

import pyarrow as pa

from pgoutput_etl.answers.verify.row_text import canonicalize, text_batches, text_names, texts_of_batch
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE
from pgoutput_etl.types import column_type
from pgoutput_etl.types.canonical_text import ComparedColumn

TIME = pa.timestamp("us", tz="UTC")
COLUMNS = [ComparedColumn("a", column_type(23, -1)), ComparedColumn("b", column_type(1184, -1))]
COLUMNS.append(ComparedColumn("c", column_type(701, -1)))
SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in text_names(3)),
        ("unknown", pa.list_(pa.int32())),
        ("lsn", pa.int64()),
        ("ts", TIME),
        ("xid", pa.int64()),
    ]
)


def stored(**columns: pa.Array) -> pa.RecordBatch:
    odd = [
        [],
        [{"key": "b", "value": "infinity"}, {"key": "c", "value": None}, {"key": "dropped", "value": "x"}],
        None,
    ]
    first = {
        "c0": pa.array([1, 2, None], pa.int32()),
        "c1": pa.array([0, None, None], TIME),
        "c2": pa.array([0.5, None, 1e20]),
        "odd": pa.array(odd, UNREPRESENTABLE),
        "lsn": pa.array([10, 20, None], pa.int64()),
        "ts": pa.array([0, 1, None], TIME),
        "xid": pa.array([7, 8, None], pa.int64()),
    }
    return pa.RecordBatch.from_pydict({**first, **columns})


def test_unrepresentable_values_have_texts_and_unsent_ones_none() -> None:
    texts = texts_of_batch(stored(), COLUMNS, [False] * 3, SCHEMA).to_pydict()
    assert (texts["t0"], texts["t2"]) == (["1", "2", None], ["0.5", None, "1e+20"])
    assert texts["t1"] == ["1970-01-01 00:00:00+00", "infinity", None]
    assert texts["unknown"] == [None, [2], None]
    assert (texts["lsn"], texts["xid"]) == ([10, 20, None], [7, 8, None])


def test_a_string_column_of_a_foreign_table_is_postgresqls_text() -> None:
    strings = pa.array(["0.50", None, "1e+20"])
    texts = texts_of_batch(stored(c2=strings), COLUMNS, [False, False, True], SCHEMA)
    assert texts.column("t2").to_pylist() == ["0.50", None, "1e+20"]
    once = canonicalize(texts, COLUMNS)
    assert once.column("t2").to_pylist() == ["0.5", None, "1e+20"]
    assert once.schema == texts.schema
    assert once.column("t0") == texts.column("t0")
    assert canonicalize(texts.slice(0, 0), COLUMNS).num_rows == 0


def test_fields_of_a_csv_are_selected_by_position() -> None:
    schema = pa.schema([("t0", pa.string()), ("t1", pa.string())])
    records: list[list[str | None]] = [["id", "x", "v"], ["1", "-", None], ["2", "-", "b"]]
    [batch] = text_batches(iter(records), [2, 0], schema)
    assert batch.to_pydict() == {"t0": [None, "b"], "t1": ["1", "2"]}
    many: list[list[str | None]] = [["id"]]
    many += ([str(i)] for i in range(25_000))
    assert sum(batch.num_rows for batch in text_batches(iter(many), [0], schema.remove(1))) == 25_000

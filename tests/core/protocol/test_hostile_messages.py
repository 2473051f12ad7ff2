"""Messages that no server sent raise one of our errors or decode correctly.

A message decodes correctly if tests/support/encoder.py encodes it to the same bytes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest

from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.messages import Delete, PgoutputMessage, Relation, TupleData
from pgoutput_etl.schema.table_shape import TableShape
from tests.support.encoder import encode
from tests.support.mutations import Tell, mutated, mutated_messages, no_hang, real_changes, row_of, shape_of

Decoder = Callable[[bytes, bool], PgoutputMessage]
DECODERS: dict[str, Decoder] = {"readable": decode}


def right_or_refused(decoder: Decoder, seed: int, count: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for data, in_stream in mutated_messages(seed, count):
        try:
            message = decoder(data, in_stream)
        except PgoutputEtlError:
            found["refused"] += 1
            continue
        # pg_catalog is sent as an empty name, and means the same when it is written out
        assert encode(message) == data or b"pg_catalog\0" in data
        found["right"] += 1
    return found


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS.keys())
def test_a_mutated_message_is_refused_or_right(decoder: Decoder) -> None:
    with no_hang(60):
        found = right_or_refused(decoder, 1, 60_000)
    assert found["refused"] > 30_000
    assert found["right"] > 5_000


@pytest.mark.soak
@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS.keys())
def test_a_million_mutated_messages(decoder: Decoder, tell: Tell) -> None:
    with no_hang(1200):
        found = right_or_refused(decoder, 2, 1_000_000)
    assert sum(found.values()) == 1_000_000
    tell("messages", dict(found))


def test_bytes_of_no_message_at_all() -> None:
    dice = random.Random(3)
    for tag in range(256):
        for size in (0, 1, 4, 8, 30, 200):
            for in_stream in (False, True):
                data = bytes([tag]) + dice.randbytes(size)
                with suppress(PgoutputEtlError):
                    assert encode(decode(data, in_stream)) == data


def hostile_tuple(dice: random.Random, data: TupleData, other: TupleData) -> TupleData:
    """Changes one value, or the kind of one."""
    at = dice.randrange(len(data.kinds))
    values = list(data.values)
    sent = [value for value in other.values if value is not None] or [b""]
    kind = data.kinds[at : at + 1]
    value = values[at]
    if value is not None and dice.random() < 0.9:
        values[at] = mutated(dice, value, dice.choice(sent))
    else:
        kind = dice.choice((b"n", b"u", b"t", b"b"))
        values[at] = dice.choice(sent) if kind in b"tb" else None
    return TupleData(data.kinds[:at] + kind + data.kinds[at + 1 :], tuple(values))


def typed_or_refused(seed: int, count: int) -> Counter[str]:
    dice = random.Random(seed)
    changes = real_changes()
    shapes: dict[Relation, TableShape] = {}
    found: Counter[str] = Counter()
    for _ in range(count):
        relation, message = dice.choice(changes)
        other = dice.choice(changes)[1]
        filler = other.old if isinstance(other, Delete) else other.new
        if isinstance(message, Delete):
            message = replace(message, old=hostile_tuple(dice, message.old, filler))
        else:
            message = replace(message, new=hostile_tuple(dice, message.new, filler))
        shape = shapes.setdefault(relation, shape_of(relation))
        rows = pa.RecordBatch.from_pylist([row_of(message)], ROW_SCHEMA)
        try:
            for batch in event_batches(rows, shape):
                batch.validate(full=True)
                found["unrepresentable"] += bool(batch.column("_unrep").null_count < batch.num_rows)
        except PgoutputEtlError:
            found["refused"] += 1
        else:
            found["events"] += 1
    return found


def test_a_hostile_value_makes_an_event_or_is_refused() -> None:
    with no_hang(60):
        found = typed_or_refused(4, 500)
    assert min(found["events"], found["refused"]) > 100
    assert found["unrepresentable"] > 0


@pytest.mark.soak
def test_many_hostile_values_in_rows(tell: Tell) -> None:
    with no_hang(1200):
        found = typed_or_refused(5, 100_000)
    tell("rows", dict(found))

"""Changes are erased from landed files; everything else stays as it was, in its place."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pgoutput_etl.compression import compress_like, decompress
from pgoutput_etl.errors import FramingError
from pgoutput_etl.landing.erasure import ERASED_PREFIX, erase
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.scan.message_row import CHANGE_TAGS
from tests.support import encoder
from tests.support.model.history import Messages
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    delete,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    update,
)

MESSAGES: Messages = [
    *transaction(5, 0x100, table("id", "v"), insert("1", "Ada"), insert("2", "Bob"), delete("2", None)),
    *segment(6, update("1", "Ada L."), insert("3", "Ada"), first=True),
    *transaction(7, 0x200, insert("4", "x" * 300), Message(None, True, 0x1F0, "audit", b"Ada came")),
    *segment(6, delete("1", None)),
    *stream_commit(6, 0x300),
    *segment(8, insert("5", "Ada"), first=True),
    *stream_abort(8),
]

FRAMINGS = [framing for framing in Framing if framing is not Framing.AUTO]


def landed(framing: Framing) -> bytes:
    encoded = [encoder.encode(message) for message in MESSAGES]
    rows = [encoder.Row(0x1000 + n, 7, message) for n, message in enumerate(encoded)]
    match framing:
        case Framing.RECVLOGICAL:
            return encoder.recvlogical(encoded)
        case Framing.LENGTH_PREFIXED:
            return encoder.length_prefixed(encoded)
        case Framing.PGCOPY:
            return encoder.pgcopy(rows)
        case _:
            return encoder.copydata(rows, keepalives=(0, 3, len(rows)))


def rows(data: bytes, framing: Framing) -> list[dict[str, Any]]:
    return [row for batch in scan_file("a", 0, data, framing).batches for row in batch.to_pylist()]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("seed", range(12))
def test_only_the_chosen_changes_are_gone(framing: Framing, seed: int) -> None:
    data, chance = landed(framing), random.Random(seed)
    before = rows(data, framing)
    changes = [row for row in before if row["tag"] in CHANGE_TAGS and row["tag"] != "T"]
    chosen = {row["ordinal"]: row for row in changes if chance.random() < 0.4}
    done = erase(data, framing, {row["offset"]: row["xid"] is not None for row in chosen.values()})

    after = {row["ordinal"]: row for row in rows(done.data, framing) if row["tag"] not in ("file", "M")}
    kept = {r["ordinal"]: r for r in before if r["tag"] not in ("file", "M") and r["ordinal"] not in chosen}
    assert after.keys() == kept.keys()
    for number, row in kept.items():
        moved = {"offset": done.moved(row["offset"]), "end": done.moved(row["end"])}
        counted = {"changes": after[number]["changes"], "begin": after[number]["begin"]}
        assert after[number] == {**row, **moved, **counted}
    left = [decode(row["body"], row["xid"] is not None) for row in rows(done.data, framing) if row["tag"] == "M"]
    assert sum(isinstance(m, Message) and m.prefix == ERASED_PREFIX for m in left) == len(chosen)


@pytest.mark.parametrize("framing", FRAMINGS)
def test_of_a_message_only_the_content_is_erased(framing: Framing) -> None:
    data = landed(framing)
    [audit] = [row for row in rows(data, framing) if row["tag"] == "M"]
    done = erase(data, framing, {audit["offset"]: False})
    [left] = [row for row in rows(done.data, framing) if row["tag"] == "M"]
    assert decode(left["body"], False) == Message(None, True, 0x1F0, "audit", b"")
    assert b"Ada came" not in done.data
    assert erase(data, framing, {}).data == data


def test_what_is_no_change_is_refused() -> None:
    with pytest.raises(FramingError, match="offset 0: expected a change to erase, found Begin"):
        erase(landed(Framing.RECVLOGICAL), Framing.RECVLOGICAL, {0: False})


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".lz4", ".bz2"])
def test_a_file_stays_compressed_as_it_was(suffix: str) -> None:
    path, old = f"a.bin{suffix}", b"old" * 100
    compressed = compress_like(b"", path, old) if suffix == "" else _compressed(old, suffix)
    again = compress_like(compressed, path, b"new" * 50)
    assert decompress(again, path) == b"new" * 50
    assert (again == b"new" * 50) is (suffix == "")


def _compressed(data: bytes, suffix: str) -> bytes:
    import pyarrow as pa

    codec = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2"}[suffix]
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    result: bytes = sink.getvalue().to_pybytes()
    return result

"""Masked archives give the mirror of a server whose tables have the masked columns, for any history."""

from __future__ import annotations

import hmac
import pickle
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.changes.events import WITHHELD
from pgoutput_etl.config.column_rules import DROP, ColumnAction, ColumnRule, Salt, changed_masks
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.masking.mask_rows import withhold_rows
from pgoutput_etl.masking.mask_tuples import MaskedVersion
from pgoutput_etl.protocol.messages import Insert, RelationColumn, ReplicaIdentity, TupleData
from pgoutput_etl.reasons import Reason
from pgoutput_etl.replay.mirror import ReplayedTable, Row
from pgoutput_etl.scan.blocks import BlockKind, packed
from pgoutput_etl.types import column_type
from pgoutput_etl.types.printing import print_text
from tests.spark.load.test_net_effect import Bag, random_history
from tests.support.protected_replay import SALT, as_sent, config_with, hashed, protected_replay, protection_of
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    copydata,
    delete_full,
    insert,
    prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    tables,
    transaction,
    update,
)

REDACT = ColumnRule(ColumnAction.REDACT)
INT4, BOOL, TIMESTAMPTZ = 23, 16, 1184
RULES = """
- {match: public.keyed, columns: {big: {hash: sha256}, doc: redact, day: drop}}
- {match: public.dated, columns: {day: {hash: sha256}, big: drop}}
- {match: public.configured, key: [id], columns: {id: {hash: sha256}, big: redact, f: {hash: sha256}}}
- {match: public.lists, columns: {big: drop}}
- {match: public.bag, columns: {v: drop, day: {hash: sha256}, f4: redact}}
"""
DONE = {
    "keyed": {"big": "hash", "doc": "redact", "day": "drop"},
    "dated": {"day": "hash", "big": "drop"},
    "configured": {"id": "hash", "big": "redact", "f": "hash"},
    "lists": {"big": "drop"},
    "bag": {"v": "drop", "day": "hash", "f4": "redact"},
}
KEYS = {"public.configured": ("id",)}


def _expected(row: Row, held: ReplayedTable, done: Mapping[str, str]) -> Row:
    """Masks a row of the unmasked mirror."""
    odd = dict(row["_pg_unrepresentable"] or {})
    found: Row = {}
    for column in held.shape.columns:
        name, value = column.name, row[column.name]
        [text] = print_text(column.type, pa.array([value], column.type.arrow))
        spelled = odd.get(name) if text is None else text.decode()
        is_unknown = name in odd and odd[name] is None
        match done.get(name):
            case "drop":
                odd.pop(name, None)
            case "hash":
                found[name] = None if spelled is None else hashed(spelled)
                if not is_unknown:
                    odd.pop(name, None)
            case "redact":  # unchanged TOAST is not NULL
                found[name] = "REDACTED" if spelled is not None or is_unknown else None
                odd.pop(name, None)
            case _:
                found[name] = value
    return found | {"_pg_unrepresentable": odd or None}


def _comparable(row: Row) -> str:
    odd = row["_pg_unrepresentable"]
    plain = {name: value for name, value in row.items() if not name.startswith("_pg_")}
    return repr((plain, None if odd is None else sorted(odd.items())))


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 30))])
def test_random_histories_give_the_masked_mirror(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unchanged TOAST, REPLICA IDENTITY FULL, keys that change, transactions across files, truncates. The bag has no
    rows from before the slot: a DELETE of one would remove an equal masked row, but no row of the unmasked mirror."""
    monkeypatch.setattr(Bag, "begin", lambda *_: None)
    random = Random(seed)
    messages = random_history(random, 80)
    cuts = [0, *sorted(random.sample(range(1, len(messages)), 3)), len(messages)]
    files = [copydata(messages[a:b], 0x1000000 * (n + 1)) for n, (a, b) in enumerate(pairwise(cuts))]
    plain = as_sent(files).tables(KEYS)
    found = protected_replay(config_with(tmp_path, RULES), files).tables(KEYS)
    assert found.keys() == plain.keys()
    for oid, held in plain.items():
        done = DONE[held.shape.relation.name]
        want = Counter(_comparable(_expected(row, held, done)) for row in held.rows)
        assert Counter(map(_comparable, found[oid].rows)) == want, held.shape.relation.name


def _rows(tmp_path: Path, columns: str, *files: Messages, **keys: tuple[str, ...]) -> list[tuple[Any, ...]]:
    """The rows of table t under a rule."""
    key = f", key: [{', '.join(keys['t'])}]" if keys else ""
    config = config_with(tmp_path, f"[{{match: public.t, columns: {columns}{key}}}]")
    return tables(protected_replay(config, [copydata(messages) for messages in files]), **keys).get("t", [])


def test_null_stays_null_and_an_empty_text_does_not(tmp_path: Path) -> None:
    changes = [insert("1", "", "", ""), insert("2", None, None, None)]
    rows = _rows(
        tmp_path,
        "{a: {hash: sha256}, b: redact, c: {redact: x}}",
        transaction(1, 1, table("id", "a", "b", "c"), *changes),
    )
    assert rows == [("1", hashed(""), "REDACTED", "x"), ("2", None, None, None)]


def test_a_file_without_a_relation_message_uses_that_of_an_earlier_file(tmp_path: Path) -> None:
    first = transaction(1, 1, table("id", "a", "b"), insert("1", "x", "y"))
    second = transaction(2, 2, insert("2", "z", TOAST))
    assert _rows(tmp_path, "{a: drop}", first, second) == [("1", "y"), ("2", None)]


def test_every_row_is_masked_by_its_own_relation_version(tmp_path: Path) -> None:
    """A streamed transaction's version holds for it alone until it commits, and never for others if it aborts."""
    wide = table("id", ("new", 1043), "mail")
    messages = [
        *transaction(1, 1, table("id", "mail"), insert("1", "m1")),
        *segment(2, wide, insert("2", "n2", "m2"), first=True),
        *transaction(3, 2, insert("3", "m3")),
        *segment(4, table("id", "x", "y", "mail"), insert("4", "x4", "y4", "m4"), first=True),
        *stream_abort(4),
        *stream_commit(2, 3),
        *transaction(5, 4, insert("5", "n5", "m5")),
    ]
    assert _rows(tmp_path, "{mail: {hash: sha256}, new: added}", messages) == [
        ("1", None, hashed("m1")),
        ("2", "n2", hashed("m2")),
        ("3", None, hashed("m3")),
        ("5", "n5", hashed("m5")),
    ]


def test_a_delete_in_a_bag_removes_one_of_several_equal_masked_rows(tmp_path: Path) -> None:
    """Without the dropped column two rows are equal. A DELETE removes one of them, as on the server."""
    bag = table("a", "b", identity=ReplicaIdentity.FULL)
    changes: list[Change] = [insert("1", "x"), insert("1", "y"), insert("2", "x"), delete_full("1", "y")]
    changes.append(update("1", "z", old=("1", "x")))
    assert _rows(tmp_path, "{b: drop}", transaction(1, 1, bag, *changes)) == [("1",), ("2",)]


def test_old_tuples_fill_unchanged_values(tmp_path: Path) -> None:
    full = table("id", "big", "v", identity=ReplicaIdentity.FULL)
    changes: list[Change] = [insert("1", "B", "x"), update("2", TOAST, "y", old=("1", "B", "x"))]
    rows = _rows(tmp_path, "{big: {hash: sha256}, id: {hash: sha256}}", transaction(1, 1, full, *changes), t=("id",))
    assert rows == [(hashed("2"), hashed("B"), "y")]


def test_hashes_do_not_depend_on_the_sender_s_settings(tmp_path: Path) -> None:
    relation = table("id", ("at", TIMESTAMPTZ), ("b", BOOL))
    changes = [insert("1", "2026-01-01 12:00:00+01", "t"), insert("2", "2026-01-01 11:00:00+00", "t")]
    rows = _rows(tmp_path, "{at: {hash: sha256}, b: {hash: sha256}}", transaction(1, 1, relation, *changes))
    assert [row[1:] for row in rows] == [(hashed("2026-01-01 11:00:00+00"), hashed("t"))] * 2


def test_the_same_value_has_the_same_hash_in_every_table(tmp_path: Path) -> None:
    one, other = table("id", oid=1, name="one"), table(("id", INT4), oid=2, name="other")
    messages = transaction(1, 1, one, insert("7", oid=1), other, insert("7", oid=2))
    config = config_with(tmp_path, "[{match: 'public.*', columns: {id: {hash: sha256}}}]")
    rows = tables(protected_replay(config, [copydata(messages)]))
    assert rows == {"one": [(hashed("7"),)], "other": [(hashed("7"),)]}


@pytest.mark.parametrize(
    ("number", "expected"),
    [("not a number", "column 'n' can't be hashed: expected "), ("1" * 40, "column 'n' can't be hashed")],
)
def test_a_value_that_is_not_of_its_type_withholds_its_row(number: str, expected: str, tmp_path: Path) -> None:
    relation = table("id", ("n", INT4))
    with pytest.raises(ArchiveError, match=expected) as refused:
        _rows(tmp_path, "{n: {hash: sha256}}", transaction(1, 1, relation, insert("1", "5"), insert("2", number)))
    assert number not in str(refused.value)
    assert "offset" in str(refused.value)


def _everything(config_folder: Path, messages: Messages) -> list[Row]:
    """The masked message rows."""
    content = copydata(messages)
    protected = protection_of(config_with(config_folder, "[{match: public.t, columns: {v: drop}}]"), as_sent([content]))
    assert protected is not None
    shipped = pickle.loads(pickle.dumps(protected))
    return [row for batch in scan_file("0", 0, content).rows for row in shipped.mask(batch).to_pylist()]


def test_other_tables_are_not_changed(tmp_path: Path) -> None:
    other = table("id", "v", oid=7, name="other")
    messages = transaction(1, 1, other, insert("1", "x", oid=7), table("id", "v"), insert("2", TOAST))
    rows = {row["relation"]: row for row in _everything(tmp_path, messages) if row["tag"] == "I"}
    assert rows[7]["new"] == TupleData(b"tt", (b"1", b"x")).to_bytes()
    assert rows[16384]["new"] == TupleData(b"t", (b"2",)).to_bytes()
    assert rows[16384]["unchanged"] is None


def test_positions_of_unchanged_values_are_those_of_the_masked_columns(tmp_path: Path) -> None:
    messages = transaction(1, 1, table("id", "v", "w", "x"), update("1", "a", TOAST, TOAST))
    [row] = [row for row in _everything(tmp_path, messages) if row["tag"] == "U"]
    assert row["unchanged"] == [1, 2]


def test_a_row_without_a_relation_message_is_withheld(tmp_path: Path) -> None:
    """Its columns are unknown, so any value may need a mask."""
    messages = transaction(1, 1, Insert(None, 99, TupleData(b"t", (b"h1dden",))), table("id", "v"), insert("1", "x"))
    [row, _] = [row for row in _everything(tmp_path, messages) if row["tag"] == "I"]
    assert row["new"].startswith(WITHHELD)
    assert Reason.from_json(row["new"].removeprefix(WITHHELD).decode()) == "no Relation message describes it"


def test_a_row_of_another_width_than_its_relation_is_withheld(tmp_path: Path) -> None:
    messages = transaction(1, 1, table("id", "v"), insert("1", "x", "h1dden"))
    [row] = [row for row in _everything(tmp_path, messages) if row["tag"] == "I"]
    assert row["new"].startswith(WITHHELD)
    assert b"h1dden" not in row["new"]


def test_no_block_has_an_unmasked_value(tmp_path: Path) -> None:
    messages = [
        *transaction(1, 1, table("id", "v"), insert("1", "h1dden"), update("1", "h1dden")),
        *prepared(2, insert("2", "h1dden")),
        *segment(3, insert("3", "h1dden"), first=True),
    ]
    content = copydata(messages)
    config = config_with(tmp_path, "[{match: public.t, columns: {v: {hash: sha256}}}]")
    protected = protection_of(config, as_sent([content]))
    assert protected is not None
    for mask in (withhold_rows, protected.mask):
        batches = [mask(batch) for batch in scan_file("0", 0, content).rows]
        block = packed(pa.Table.from_batches(batches), BlockKind.CHANGE).to_pylist()[0]
        assert b"h1dden" not in block["tuples"] + block["head"]
        assert SALT.encode() not in block["tuples"] + block["head"]


def test_damaged_bytes_are_removed(tmp_path: Path) -> None:
    content = copydata(transaction(1, 1, table("id", "v"), insert("1", "h1dden"), insert("2", "x"), insert("3", "x")))
    at = content.index(b"h1dden") - 5
    torn = content[:at] + b"?" + content[at + 1 :]
    protected = protection_of(config_with(tmp_path, "[{match: public.t, columns: {v: drop}}]"), as_sent([content]))
    assert protected is not None
    batches = scan_file("0", 0, torn, salvages=True).rows
    assert any(b"h1dden" in (row["body"] or b"") for batch in batches for row in batch.to_pylist())
    for mask in (withhold_rows, protected.mask):
        rows = [row for batch in batches for row in mask(batch).to_pylist()]
        assert [row["tag"] for row in rows].count("damage") == 1
        assert b"h1dden" not in repr(rows).encode()


def test_a_salt_is_not_shown_and_a_changed_salt_is_noticed() -> None:
    salt, other = Salt(SALT.encode()), Salt(b"another salt of enough bytes")
    assert SALT not in repr(salt)
    assert salt.fingerprint != other.fingerprint
    for secret in (SALT.encode(), b"0" * 64, b"longer than a block of SHA-256 " * 3):
        texts = [b"", b"x", b"y" * 1000]
        expected = [hmac.new(secret, text, "sha256").hexdigest().encode() for text in texts]
        assert Salt(secret).hashed(texts) == expected
    then = {"a": f"hash: sha256, salt {salt.fingerprint}", "b": "drop"}
    assert changed_masks(then, frozenset({"c"}), then) == []
    assert changed_masks({"a": "redact: x"}, frozenset(), {"a": "redact: y"}) == ["a was redacted to another text"]
    now = {"a": f"hash: sha256, salt {other.fingerprint}", "c": "redact: REDACTED", "d": "drop"}
    assert changed_masks(then, frozenset({"c"}), now) == [
        "a was hashed with another salt",
        "b (drop before, as it is now)",
        "c (as it is before, redact now)",
    ]


@st.composite
def _tuples(draw: st.DrawFn) -> tuple[MaskedVersion, list[bytes | None]]:
    """A version, and tuples most of which fit it."""
    uses = draw(
        st.lists(st.sampled_from([None, DROP, ColumnRule(ColumnAction.HASH, Salt(SALT.encode())), REDACT]), min_size=1)
    )
    types = draw(st.lists(st.sampled_from([25, 23, 17]), min_size=len(uses), max_size=len(uses)))
    columns = tuple(RelationColumn(False, f"c{i}", of, -1) for i, of in enumerate(types))
    hashed_types = {
        i: column_type(types[i], -1) for i, use in enumerate(uses) if use and use.action is ColumnAction.HASH
    }
    values = {25: [b"", b"long" * 40, "é".encode()], 23: [b"7", b"-1", b"no"], 17: [b"\\x00ff", b"\\x"]}
    sent = {25: b"binary", 23: b"\x00\x00\x00\x07", 17: b"\x00\xff"}
    tuples: list[bytes | None] = []
    for _ in range(draw(st.integers(0, 6))):
        kinds, cells = bytearray(), list[bytes | None]()
        for of in types if draw(st.integers(0, 9)) else types[1:]:
            kind = draw(st.sampled_from(b"nuttbb"))
            kinds.append(kind)
            cells.append({0x74: draw(st.sampled_from(values[of])), 0x62: sent[of]}.get(kind))
        tuples.append(draw(st.sampled_from([TupleData(bytes(kinds), tuple(cells)).to_bytes()] * 5 + [None])))
    return MaskedVersion(columns, {i: use for i, use in enumerate(uses) if use is not None}, hashed_types), tuples


@given(_tuples())
def test_kernels_equal_the_readable_twin(version_and_tuples: tuple[MaskedVersion, list[bytes | None]]) -> None:
    version, tuples = version_and_tuples
    one_by_one = iter(version.mask_readable([data for data in tuples if data is not None]))
    expected = [None if data is None else next(one_by_one) for data in tuples]
    padded = pa.array([b"before", *tuples], pa.binary()).slice(1)
    assert version.mask(padded).to_pylist() == expected

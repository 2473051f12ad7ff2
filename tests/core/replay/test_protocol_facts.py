"""Facts about pgoutput that are easy to get wrong, numbered as in the design, each with a small archive."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.protocol.messages import Begin, Commit, Message, Relation, ReplicaIdentity, TruncateOption, Type
from pgoutput_etl.replay.mirror import Replay
from tests.support import encoder
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    T,
    commit_prepared,
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    prepared,
    replayed,
    rollback_prepared,
    rows_of,
    segment,
    stream_abort,
    stream_commit,
    stream_prepare,
    table,
    tables,
    transaction,
    truncate,
    update,
)

FULL = ReplicaIdentity.FULL
DATE, TIMESTAMPTZ, BYTEA = 1082, 1184, 17
FLOAT4, FLOAT8, INT4_ARRAY, TEXT_ARRAY, FLOAT8_ARRAY = 700, 701, 1007, 1009, 1022


def test_fact_01_inside_a_stream_segment_messages_carry_an_xid() -> None:
    every_kind: list[Change] = [
        Type(None, 99000, "public", "mood"),
        table(),
        truncate(),
        insert("1", "a"),
        insert("2", "b"),
        update("1", "A"),
        delete("2", None),
        Message(None, True, 1, "prefix", b"content"),
    ]
    streamed = replayed(segment(5, *every_kind, first=True), stream_commit(5, 10))
    ordinary = replayed(transaction(5, 10, *every_kind))
    assert tables(streamed) == tables(ordinary) == {"t": [("1", "A")]}
    assert streamed.assembly.types[99000].name == ordinary.assembly.types[99000].name == "mood"


def test_fact_02_only_stream_commit_has_the_commit_lsn_of_a_streamed_transaction() -> None:
    """Its changes are sent before the changes of a transaction that commits earlier, but applied after them."""
    replay = replayed(
        transaction(3, 10, table(), insert("1", "first"), insert("2", "ordinary")),
        segment(5, table(), update("1", "streamed"), first=True),
        transaction(6, 20, update("1", "second")),
        stream_commit(5, 30),
    )
    assert tables(replay)["t"] == [("1", "streamed"), ("2", "ordinary")]
    found = {row["id"]: (row["_pg_commit_lsn"], row["_pg_xid"]) for row in replay.tables()[T].rows}
    assert found == {"1": (30, 5), "2": (10, 3)}


def test_fact_03_stream_abort_of_a_subtransaction_drops_only_its_changes() -> None:
    archive = [
        *segment(5, table(), insert("1", "top"), in_subtransaction(6, insert("2", "dropped")), first=True),
        *segment(5, in_subtransaction(7, insert("3", "kept"))),
        *stream_abort(5, 6),
        *segment(5, in_subtransaction(8, insert("4", "later")), insert("5", "top")),
        *stream_commit(5, 10),
    ]
    assert rows_of(archive) == [("1", "top"), ("3", "kept"), ("4", "later"), ("5", "top")]


def test_fact_03_relation_messages_of_the_aborted_part_stay_valid() -> None:
    archive = [
        *segment(5, in_subtransaction(6, table()), in_subtransaction(6, insert("1", "dropped")), first=True),
        *stream_abort(5, 6),
        *segment(5, insert("2", "kept")),
        *stream_commit(5, 10),
        *transaction(9, 20, insert("3", "after")),
    ]
    assert rows_of(archive) == [("2", "kept"), ("3", "after")]


WIDE = table("id", "v", "w")


def test_fact_04_a_relation_holds_even_if_its_prepared_transaction_is_rolled_back() -> None:
    archive = [
        *transaction(3, 10, table(), insert("1", "a")),
        *prepared(4, WIDE, insert("2", "b", "gone")),
        *rollback_prepared(4),
        *transaction(5, 20, insert("3", "c", "d")),
    ]
    assert rows_of(archive) == [("1", "a", None), ("3", "c", "d")]


@pytest.mark.parametrize("end", [stream_commit(5, 30), stream_prepare(5)], ids=["Stream Commit", "Stream Prepare"])
def test_fact_04_in_a_segment_a_relation_holds_for_its_transaction_until_its_end(end: Messages) -> None:
    archive = [
        *transaction(3, 10, table(), insert("1", "a")),
        *segment(5, in_subtransaction(8, WIDE), insert("2", "b", "streamed"), first=True),
        *transaction(6, 20, insert("3", "c")),
        *segment(5, insert("4", "d", "streamed")),
        *end,
        *transaction(7, 40, insert("5", "e", "after")),
        *commit_prepared(5, 50),
    ]
    assert rows_of(archive) == [
        ("1", "a", None),
        ("2", "b", "streamed"),
        ("3", "c", None),
        ("4", "d", "streamed"),
        ("5", "e", "after"),
    ]


def test_fact_04_in_a_segment_of_an_aborted_transaction_a_relation_never_holds_for_others() -> None:
    archive = [
        *transaction(3, 10, table(), insert("1", "a")),
        *segment(5, WIDE, insert("2", "b", "gone"), first=True),
        *stream_abort(5),
        *transaction(6, 20, insert("3", "c")),
    ]
    assert rows_of(archive) == [("1", "a"), ("3", "c")]


def test_fact_05_a_row_belongs_to_the_relation_version_at_its_position() -> None:
    """A column is dropped within the transaction, and earlier rows are applied when the new version is known."""
    archive = [
        *segment(5, WIDE, insert("1", "old v", "old w"), first=True),
        *segment(5, table("id", "w"), insert("2", "new w")),
        *stream_commit(5, 10),
    ]
    assert rows_of(archive) == [("1", "old w"), ("2", "new w")]


def test_fact_06_the_same_oid_under_another_name_is_a_rename() -> None:
    renamed = table(name="renamed")
    replay = replayed(transaction(3, 10, table(), insert("1", "a")), transaction(4, 20, renamed, insert("2", "b")))
    assert tables(replay) == {"renamed": [("1", "a"), ("2", "b")]}


def test_fact_06_the_same_name_under_another_oid_is_another_table() -> None:
    successor = table("id", "other", oid=T + 1)
    replay = replayed(
        transaction(3, 10, table(), insert("1", "a")), transaction(4, 20, successor, insert("1", "b", oid=T + 1))
    )
    assert tables(replay) == {"t": [("1", "b")]}


def test_fact_07_the_relation_message_flags_the_key() -> None:
    composite = table("v", "b", "a", key=("a", "b"))
    archive = transaction(3, 10, composite, insert("x", "1", "2"), insert("y", "2", "1"), update("z", "2", "1"))
    assert rows_of(archive) == [("x", "1", "2"), ("z", "2", "1")]


def test_fact_07_under_full_only_the_configuration_names_unique_columns() -> None:
    archive = transaction(3, 10, table(identity=FULL), insert("1", "a"), insert("1", "a"), insert("1", "b"))
    assert tables(replayed(archive))["t"] == [("1", "a"), ("1", "a"), ("1", "b")]
    with pytest.raises(TableError, match=r"transaction 3, .* the configured key \(id\) is not unique"):
        tables(replayed(archive), t=("id",))
    apart = [*transaction(3, 10, table(identity=FULL), insert("1", "a")), *transaction(4, 20, insert("1", "b"))]
    assert tables(replayed(apart), t=("id",))["t"] == [("1", "b")]


def test_fact_07_a_key_has_no_null() -> None:
    archive = transaction(3, 10, table(identity=FULL), insert("1", "a"), insert(None, "b"))
    with pytest.raises(ArchiveError, match=r"file 0, offset .* column 'id' of the configured key is NULL"):
        tables(replayed(archive), t=("id",))
    assert len(tables(replayed(archive))["t"]) == 2


@pytest.mark.parametrize(
    ("type_oid", "key", "same"),
    [
        (INT4_ARRAY, "{1,NULL,2}", "{1,NULL,2}"),
        (INT4_ARRAY, "{}", "{}"),
        (TEXT_ARRAY, '{a,"b c"}', '{a,"b c"}'),
        (FLOAT8, "NaN", "NaN"),
        (FLOAT8, "-0", "0"),
        (FLOAT4, "NaN", "NaN"),
        (FLOAT8_ARRAY, "{NaN,-0}", "{NaN,0}"),
    ],
)
def test_fact_07_keys_are_compared_as_by_a_unique_index(type_oid: int, key: str, same: str) -> None:
    relation = table(("id", type_oid), "v")
    first = transaction(1, 10, relation, insert(key, "a"), update(same, "b"))
    second = transaction(2, 20, delete(same, None))
    assert [row[1:] for row in rows_of(first)] == [("b",)]
    assert rows_of(first, second) == []


def test_fact_07_an_hstore_may_be_a_key() -> None:
    hstore = Type(None, 99, "public", "hstore")
    first = transaction(1, 10, hstore, table(("id", 99), "v"), insert('"a"=>"1", "b"=>NULL', "x"), insert("", "y"))
    second = transaction(2, 20, update('"a"=>"1", "b"=>NULL', "z"), delete("", None))
    assert [row[1:] for row in rows_of(first, second)] == [("z",)]


def test_fact_08_value_null_unchanged_and_not_sent_are_four_things() -> None:
    archive = transaction(
        3,
        10,
        table("id", "null", "unchanged", "value"),
        insert("1", "a", "b", "c"),
        update("1", None, TOAST, "C"),
        insert("7", "a", None, "c"),
        update("8", "A", TOAST, "C", old_key=("7", None, None, None)),  # n: not sent, not NULL
        insert("9", None, "b", "c"),
        update("9", TOAST, TOAST, TOAST),
    )
    assert rows_of(archive) == [("1", None, "b", "C"), ("8", "A", None, "C"), ("9", None, "b", "c")]


def test_fact_08_not_sent_does_not_fill_in_for_unchanged() -> None:
    archive = transaction(3, 10, table(), insert("1", "long"), update("2", TOAST, old_key=("1", None)))
    assert rows_of(archive) == [("2", "long")]


def test_fact_09_under_full_the_old_tuple_has_the_unchanged_value() -> None:
    archive = transaction(
        3,
        10,
        table("id", "v", "w", identity=FULL),
        insert("1", "long", "x"),
        update("1", TOAST, "y", old=("1", "long", "x")),
    )
    assert rows_of(archive) == [("1", "long", "y")]
    replay = replayed(archive, transaction(4, 20, delete_full("1", "long", "y"), insert("2", "z", "z")))
    assert tables(replay, t=("id",)) == tables(replay) == {"t": [("2", "z", "z")]}


def test_fact_10_commit_lsns_order_transactions() -> None:
    archive = [
        *transaction(3, 10, table(), insert("1", "start")),
        *segment(5, table(), update("1", "commits last"), first=True),
        *segment(6, table(), update("1", "sent last"), first=True),
        *stream_commit(6, 20),
        *stream_commit(5, 30),
    ]
    assert rows_of(archive) == [("1", "commits last")]


def test_fact_10_positions_and_not_lsns_order_the_rows_of_a_transaction() -> None:
    first, second = (
        transaction(3, 10, table(), insert("1", "a"), update("1", "b"), update("1", "c"), update("1", "d")),
        [
            *segment(5, table(), update("1", "e"), first=True),
            *segment(5, update("1", "f"), in_subtransaction(6, update("1", "g"))),
            *stream_commit(5, 20),
        ],
    )
    replay = Replay()
    for number, messages in enumerate((first, second)):
        lsns = [900 - i // 2 for i in range(len(messages))]  # descending, each twice
        rows = [encoder.Row(lsn, 0, encoder.encode(m)) for lsn, m in zip(lsns, messages, strict=True)]
        replay.add_file(f"{number}.copydata", encoder.copydata(rows))
        assert tables(replay)["t"] == [("1", "dg"[number])]


def test_fact_11_a_key_change_keeps_values_that_the_message_lacks() -> None:
    archive = transaction(
        3,
        10,
        table(),
        insert("1", "was one"),
        insert("2", "was two"),
        update("3", TOAST, old_key=("1", None)),  # a swap of two keys by way of a third
        update("1", TOAST, old_key=("2", None)),
        update("2", TOAST, old_key=("3", None)),
    )
    assert rows_of(archive) == [("1", "was two"), ("2", "was one")]


@pytest.mark.parametrize("options", range(4))
def test_fact_12_truncate_names_several_relations_and_its_options_are_bits(options: int) -> None:
    others = [table(oid=T + i, name=name) for i, name in ((1, "u"), (2, "kept"))]
    replay = replayed(
        transaction(3, 10, table(), *others, *(insert("1", "a", oid=T + i) for i in range(3))),
        transaction(4, 20, truncate(T, T + 1, options=options), insert("2", "b", oid=T + 1)),
    )
    assert tables(replay) == {"t": [], "u": [("2", "b")], "kept": [("1", "a")]}
    assert (TruncateOption.CASCADE, TruncateOption.RESTART_IDENTITY) == (1, 2)


def test_fact_13_non_transactional_messages_belong_to_no_transaction() -> None:
    message = Message(None, False, 1, "prefix", b"content")
    archive = [
        message,
        *transaction(3, 10, table(), message, insert("1", "a")),
        message,
        *prepared(4, message, insert("2", "gone")),
        message,
        *rollback_prepared(4),
    ]
    assert rows_of([message], archive, [message]) == [("1", "a")]
    transactional = replace(message, transactional=True)
    with pytest.raises(ArchiveError, match="Message outside any transaction"):
        replayed(transaction(3, 10), [*transaction(4, 20), transactional])
    with pytest.raises(ArchiveError, match="begins inside a transaction, but nothing is open"):
        replayed(transaction(3, 10), [transactional])


def test_fact_14_oids_and_xids_are_unsigned() -> None:
    last = 2**32 - 1
    replay = replayed(
        transaction(last, 10, table(oid=last), insert("1", "a", oid=last)),
        segment(last - 1, table(oid=last), insert("2", "b", oid=last), first=True),
        stream_commit(last - 1, 2**62),
    )
    assert tables(replay) == {"t": [("1", "a"), ("2", "b")]}
    assert sorted((row["_pg_xid"], row["_pg_commit_lsn"]) for row in replay.tables()[last].rows) == [
        (last - 1, 2**62),
        (last, 10),
    ]


@pytest.mark.parametrize(
    "content",
    [
        encoder.length_prefixed(map(encoder.encode, transaction(3, 2**64 - 16))),
        encoder.length_prefixed(map(encoder.encode, stream_commit(3, 2**64 - 16))),
        copydata(transaction(3, 10), first_lsn=2**64 - 16),
    ],
    ids=["Begin", "Stream Commit", "XLogData"],
)
def test_fact_14_an_lsn_too_large_for_delta_is_refused(content: bytes) -> None:
    with pytest.raises(ArchiveError, match="LSN FFFFFFFF/FFFFFFF0 does not fit in a BIGINT"):
        Replay().add_file("a.bin", content)


def test_fact_14_times_count_microseconds_since_2000() -> None:
    for microseconds in (0, 1, -1, 845_000_000_123_456):
        archive: Messages = [Begin(10, microseconds, 3), table(), insert("1", "a"), Commit(10, 18, microseconds)]
        (row,) = replayed(archive).tables()[T].rows
        expected = datetime(2000, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=microseconds)
        assert row["_pg_commit_ts"] == expected


def typed(type_oid: int) -> Relation:
    return table("id", ("v", type_oid))


@pytest.mark.parametrize(
    ("type_oid", "text", "setting"),
    [
        (DATE, "21/11/2026", "DateStyle"),
        (DATE, "11-12-2026", "DateStyle"),
        (TIMESTAMPTZ, "Sat Nov 21 03:04:05 2026 UTC", "DateStyle"),
        (TIMESTAMPTZ, "21.11.2026 03:04:05 CET", "DateStyle"),
        (TIMESTAMPTZ, "2026-11-21 03:04:05", "column 'v'"),
        (BYTEA, r"a\000b", "bytea_output"),
    ],
)
def test_fact_15_text_of_other_sender_settings_is_refused(type_oid: int, text: str, setting: str) -> None:
    with pytest.raises(ArchiveError, match=setting):
        rows_of(transaction(3, 10, typed(type_oid), insert("1", text)))


def test_fact_15_utc_offsets_of_any_time_zone_are_read() -> None:
    texts = ("2026-11-21 03:04:05+00", "2026-11-21 08:34:05+05:30", "2026-11-20 22:04:05-05")
    archive = transaction(3, 10, typed(TIMESTAMPTZ), *(insert(str(i), text) for i, text in enumerate(texts)))
    assert {v for _, v in rows_of(archive)} == {datetime(2026, 11, 21, 3, 4, 5, tzinfo=timezone.utc)}

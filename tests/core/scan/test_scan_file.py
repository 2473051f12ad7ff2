"""Scanning landed files to message rows: cut anywhere, in any framing, with helpful errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ArchiveError, SequenceError
from pgoutput_etl.protocol.framing import detect, frames
from pgoutput_etl.protocol.messages import (
    Commit,
    CommitPrepared,
    Message,
    Origin,
    PgoutputMessage,
    StreamCommit,
    StreamStop,
    Truncate,
    Type,
)
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan
from tests.support import encoder
from tests.support.captures import DATA
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    Rows,
    T,
    commit_prepared,
    copydata,
    delete,
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

ORIGIN = Origin(1, "elsewhere")
NEWS: Change = Message(None, True, 0x16B374848, "news", b"content")
HEARTBEAT = Message(None, False, 0x16B374848, "heartbeat", b"")
OTHER = table(oid=T + 1, name="other")
ALTERED, AS_IT_WAS = table("id", "v", "w", oid=T + 2, name="altered"), table(oid=T + 2, name="altered")

# Every message that pgoutput has, and most of what can become of a transaction.
HISTORY: Messages = [
    *transaction(3, 10, Type(None, 99000, "public", "mood"), table(), insert("1", "a"), insert("2", "b"), NEWS),
    HEARTBEAT,
    *transaction(4, 15, AS_IT_WAS, insert("1", "narrow", oid=T + 2)),
    *segment(5, table(), NEWS, insert("3", "c"), in_subtransaction(6, insert("4", "dropped")), first=True),
    *segment(7, ALTERED, insert("2", "wide", "w", oid=T + 2), NEWS, first=True),
    *transaction(8, 20, OTHER, insert("1", "x", oid=T + 1), update("2", "B")),
    *stream_abort(5, 6),
    *segment(5, NEWS, insert("6", "f"), truncate(T + 1)),
    *segment(7, NEWS),
    *stream_commit(5, 30),
    *prepared(9, insert("7", "g"), NEWS),
    *prepared(10, insert("8", "rolled back")),
    *segment(7, insert("3", "wide", "w", oid=T + 2)),
    *transaction(11, 40, delete("1", None), insert("2", "y", oid=T + 1)),
    *rollback_prepared(10),
    *segment(12, OTHER, insert("3", "aborted", oid=T + 1), first=True),
    *commit_prepared(9, 50),
    *stream_abort(12),
    *segment(13, NEWS, OTHER, insert("4", "z", oid=T + 1), first=True),
    *stream_prepare(13),
    *stream_commit(7, 60),
    *transaction(14, 70, update("4", TOAST, "W", old_key=("3", None, None), oid=T + 2)),
    *commit_prepared(13, 80),
]
# Origin follows Begin and Stream Start.
for at in (1, 14):
    HISTORY.insert(at, ORIGIN)
OUTCOME = {
    "t": [("2", "B"), ("3", "c"), ("6", "f"), ("7", "g")],
    "other": [("2", "y"), ("4", "z")],
    "altered": [("1", "narrow", None), ("2", "wide", "w"), ("4", "wide", "W")],
}

FRAMINGS: dict[str, Callable[[list[encoder.Row]], bytes]] = {
    "copydata": lambda rows: encoder.copydata(rows, keepalives=range(0, len(rows) + 1, 3)),
    "recvlogical": lambda rows: encoder.recvlogical(row.data for row in rows),
    "length_prefixed": lambda rows: encoder.length_prefixed(row.data for row in rows),
    "pgcopy": encoder.pgcopy,
}


def cut(messages: Sequence[bytes], cuts: Iterable[int], framings: Sequence[str]) -> list[bytes]:
    """Files that end before the messages numbered `cuts`, each in the next of the framings."""
    rows = [encoder.Row(0x1000000 + i, 0, message) for i, message in enumerate(messages)]
    ends = [*sorted(cuts), len(rows)]
    return [
        FRAMINGS[framings[i % len(framings)]](rows[begin:end])
        for i, (begin, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]


def outcome(files: Iterable[bytes]) -> dict[str, Rows]:
    replay = Replay()
    for number, content in enumerate(files):
        replay.add_file(f"{number:03}.bin", content)
    return tables(replay)


def cuts_and_framings(messages: int) -> st.SearchStrategy[tuple[list[int], list[str]]]:
    cuts = st.lists(st.integers(0, messages), max_size=12)  # the same twice: an empty file
    return st.tuples(cuts, st.lists(st.sampled_from(sorted(FRAMINGS)), min_size=1, max_size=3))


def test_the_history_in_one_file() -> None:
    assert outcome([copydata(HISTORY)]) == OUTCOME


@settings(deadline=None)
@given(cuts_and_framings(len(HISTORY)))
def test_files_may_be_cut_anywhere(how: tuple[list[int], list[str]]) -> None:
    assert outcome(cut([encoder.encode(m) for m in HISTORY], *how)) == OUTCOME


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_a_file_per_message(framing: str) -> None:
    messages = [encoder.encode(m) for m in HISTORY]
    assert outcome(cut(messages, range(1, len(messages)), [framing])) == OUTCOME


@cache
def real_messages() -> list[bytes]:
    """An archive of five concurrent sessions: streamed, two-phase, with savepoints."""
    found = []
    for path in sorted((DATA / "random16" / "v3").glob("*.gz")):
        data = decompress(path.read_bytes(), str(path))
        found += [data[frame.start : frame.end] for frame in frames(data, detect(data))]
    return found


@cache
def real_outcome() -> dict[str, Rows]:
    return outcome(cut(real_messages(), [], ["copydata"]))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_real_archive_may_be_cut_anywhere(data: st.DataObject) -> None:
    how = data.draw(cuts_and_framings(len(real_messages())))
    assert outcome(cut(real_messages(), *how)) == real_outcome()


KEEPALIVES = encoder.copydata([], keepalives=[0])


@pytest.mark.parametrize("nothing", [b"", KEEPALIVES, encoder.pgcopy([])], ids=["empty", "keepalives", "pgcopy"])
@pytest.mark.parametrize("end", [*range(6), 12, 20, 30])
def test_a_file_without_messages_leaves_open_what_is_open(nothing: bytes, end: int) -> None:
    before, after = copydata(HISTORY[:end]), copydata(HISTORY[end:])
    assert outcome([nothing, before, nothing, nothing, after, nothing]) == OUTCOME


@pytest.mark.parametrize("alone", [ORIGIN, NEWS], ids=["Origin", "Message"])
def test_a_file_in_which_nothing_tells_inside_from_outside_but_nothing_depends_on_it(alone: Origin | Message) -> None:
    """Both messages may decode either way."""
    begin, relation, change, commit = transaction(3, 10, table(), insert("1", "a"))
    assert rows_of([begin, relation], [alone], [change, commit]) == [("1", "a")]
    start, *inside, stop = segment(5, table(), insert("1", "a"), first=True)
    streamed = alone if isinstance(alone, Origin) else segment(5, alone)[1]
    assert rows_of([start, inside[0]], [streamed], [inside[1], stop, *stream_commit(5, 10)]) == [("1", "a")]


def test_a_type_alone_in_a_file_is_read_as_what_is_open_says() -> None:
    """Outside a segment this message would be type 5, called mood, of the schema ABCDpublic."""
    start, mood, stop = segment(5, Type(None, 0x41424344, "public", "mood"), first=True)
    types = replayed([start], [mood], [stop]).assembly.types
    assert [(oid, t.namespace, t.name) for oid, t in types.items()] == [(0x41424344, "public", "mood")]


# Behind Truncate's tag: 3 relations, or xid 3 and then 2 relations.
EITHER_WAY = truncate(0x200, T, T + 1)
CATALOG = table(oid=0x200, name="catalog")


def test_a_file_that_can_not_be_told_inside_from_outside_is_refused() -> None:
    begin, *changes, commit = transaction(3, 10, CATALOG, table(), OTHER, insert("1", "a"), EITHER_WAY)
    with pytest.raises(ArchiveError, match=r"001\.copydata: can't tell whether this file begins inside"):
        rows_of([begin, *changes[:-1]], [EITHER_WAY], [commit])
    assert rows_of([begin, *changes[:-1]], [EITHER_WAY, commit]) == []


def summary(messages: Messages) -> FileScan:
    return scan_file("a.copydata", 0, copydata(messages)).summary


def test_the_summary_of_a_file_counts_its_messages_and_says_where_it_lies_in_the_wal() -> None:
    found = FileScan.from_json(summary([HEARTBEAT, *transaction(3, 10, table(), insert("1", "a"))]).to_json())
    assert found.messages == {"M": 1, "B": 1, "R": 1, "I": 1, "C": 1}
    assert (found.first_lsn, found.last_lsn) == (0x1000000, 0x1000004)
    assert found.size == len(copydata([HEARTBEAT, *transaction(3, 10, table(), insert("1", "a"))]))
    assert found.framing == "copydata"


def test_the_summary_of_a_file_says_which_tables_have_changes_in_it() -> None:
    both = transaction(3, 10, table(), insert("1", "a"), insert("1", "b", oid=7), truncate(T, 7), delete("1", None))
    assert summary(both).changes == {T: 3, 7: 2}


def test_a_summary_survives_the_way_to_the_driver() -> None:
    for end in range(len(HISTORY)):
        found = summary(HISTORY[:end])
        assert FileScan.from_json(found.to_json()) == found


SECRET = "4111-1111-1111-1111"
BEGIN, RELATION, INSERT, COMMIT = transaction(3, 10, table(), insert("1", SECRET))


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        (
            [BEGIN, RELATION, INSERT, *transaction(3, 20)[-1:]],
            "Commit at 0/14 of a transaction whose Begin announced 0/A",
        ),
        ([BEGIN, COMMIT, RELATION, INSERT], "Insert outside any transaction"),
        ([BEGIN, COMMIT, RELATION, COMMIT], "Commit without a Begin before it"),
        ([BEGIN, COMMIT, RELATION, *segment(5)[-1:]], "Stream Stop outside a stream segment"),
    ],
)
def test_messages_in_an_order_that_no_server_sends_are_refused(messages: Messages, wrong: str) -> None:
    with pytest.raises(ArchiveError) as raised:
        rows_of([], messages)
    offset = len(copydata(messages[:3]))
    assert str(raised.value) == f"001.copydata: offset {offset} (LSN 0/1000003), message 3: {wrong}"


def test_bytes_that_are_no_message_are_refused_by_place_and_never_shown() -> None:
    good = [encoder.encode(m) for m in (BEGIN, RELATION, INSERT)]
    bad = good[2][:-1]
    for content, lsn in ((copydata([BEGIN, RELATION]), " (LSN 0/1000002)"), (encoder.length_prefixed(good[:2]), "")):
        row = encoder.Row(0x1000002, 0, bad)
        broken = content + (encoder.copydata([row]) if lsn else encoder.length_prefixed([bad]))
        with pytest.raises(ArchiveError) as raised:
            scan_file("shop/7.bin", 0, broken)
        size = len(SECRET)
        where = f"shop/7.bin: offset {len(content)}{lsn}, message 2: Insert.new[1].value at byte {len(bad) - size + 1}"
        assert str(raised.value) == f"{where}: expected {size} bytes, found {size - 1} before the end of the message"
        assert "4111" not in repr(raised.value.__cause__)


@pytest.mark.parametrize("inside", [False, True])
def test_an_error_in_the_first_messages_is_that_of_the_right_reading(inside: bool) -> None:
    """A file that begins in a segment is read both ways, and neither way reaches the end."""
    changes = segment(5, *[insert(str(i), SECRET) for i in range(3)])[1:-1]
    good = [encoder.encode(m) for m in (changes if inside else [INSERT, INSERT, INSERT])]
    with pytest.raises(ArchiveError, match=r"message 3: Insert\.new\[1\]\.value at byte") as raised:
        scan_file("a.bin", 0, encoder.length_prefixed([*good, good[0][:-1]]))
    assert "4111" not in str(raised.value)


def test_an_error_of_the_framing_names_the_file() -> None:
    with pytest.raises(ArchiveError, match=r"shop/7\.copydata: offset 0: expected .*, found less than a message"):
        scan_file("shop/7.copydata", 0, copydata(HISTORY[:1])[:-1])
    with pytest.raises(ArchiveError, match=r"shop/7\.gz: offset 0: expected 3 bytes of gzip data"):
        scan_file("shop/7.gz", 0, b"\x1f\x8b\x08")


def test_the_order_of_files_is_refused_under_the_name_of_the_file() -> None:
    with pytest.raises(SequenceError, match=r"^001\.copydata: .* a file between them is missing"):
        replayed([], [INSERT, COMMIT])


def test_the_end_of_a_segment_proves_that_a_file_begins_inside_it() -> None:
    """Without frames, a Truncate's xid may be read as the number of tables, and all messages up to the next segment as
    their OIDs."""
    xid = 50
    outside = len(b"T") + 4 + 1 + 4 * xid  # bytes of such a Truncate

    def head(text: str) -> list[bytes]:
        return [encoder.encode(m) for m in (Truncate(xid, 0, (1,)), insert(text, xid=xid), StreamStop())]

    text = "x" * (outside + len(b"\n") - len(encoder.recvlogical(head(""))))
    after = [encoder.encode(message) for message in segment(xid, insert("2", xid=xid))]
    data = encoder.recvlogical([*head(text), *after])
    assert data.index(b"\nS") == outside
    scanned = scan_file("a.bin", 1, data)
    assert (scanned.summary.begins, scanned.summary.changes) == (FileBeginning.INSIDE, {1: 1, T: 2})


FAR = 1 << 62  # microseconds, beyond the year 9999


@pytest.mark.parametrize(
    "end",
    [Commit(10, 18, FAR), StreamCommit(3, 10, 18, FAR), CommitPrepared(10, 18, FAR, 3, "g")],
    ids=lambda message: type(message).__name__,
)
def test_a_file_that_begins_with_a_commit_with_a_damaged_time_is_salvaged(end: PgoutputMessage) -> None:
    after = transaction(4, 20, table(), insert("1"))
    messages: Messages = [insert("1"), end] if isinstance(end, Commit) else [end, *after]
    content = encoder.length_prefixed([encoder.encode(message) for message in messages])
    scanned = scan_file("b.bin", 1, content, salvages=True)
    assert len(scanned.summary.damages) == 1
    assert "expected a time in the years 1 to 9999" in scanned.summary.damages[0].reason
    assert scanned.summary.changes == {T: 1}

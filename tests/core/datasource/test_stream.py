"""`spark.readStream.format("pgoutput")` without Spark: its micro-batches have the batch reader's rows."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from pgoutput_etl.datasource.options import ReadOptions
from pgoutput_etl.datasource.stream import ArchiveStream, PlannedArchive, StreamPart
from pgoutput_etl.datasource.stream_offset import StreamOffset
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED
from tests.support.captures import DATA, files_of
from tests.support.protected_replay import ENVIRON
from tests.support.small_archives import (
    Messages,
    commit_prepared,
    copydata,
    in_subtransaction,
    insert,
    prepared,
    rollback_prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

Rows = list[dict[str, Any]]
KINDS = ("changes", "messages", "transactions")
SOAK = pytest.mark.soak
ARCHIVES = [
    *(("random16/v2", kind) for kind in KINDS),
    ("pg16/v4_twophase_parallel_binary", "changes"),
    *(pytest.param("pg16/v4_twophase_parallel_binary", kind, marks=SOAK) for kind in KINDS[1:]),
    *(
        pytest.param(slot, kind, marks=SOAK)
        for slot in ("random16/v1", "random16/v3", "random16/v4b", "pg10/v1", "pg14/v2_stream", "pg16/v3_twophase")
        for kind in KINDS
    ),
]
SMALL_STEPS = [pytest.param(is_one_file, 31, marks=SOAK) for is_one_file in (False, True)]


def stream_of(path: Path | str, **options: str) -> ArchiveStream:
    """As after a restart."""
    read = ReadOptions.of({"path": str(path), **options})
    return ArchiveStream(read, pickle.loads(pickle.dumps(PlannedArchive.of(read))))


def rows_in(parts: Iterable[StreamPart]) -> Rows:
    """As tasks read them."""
    return [row for part in parts for batch in pickle.loads(pickle.dumps(part)).read() for row in batch.to_pylist()]


def batch_rows(path: Path, **options: str) -> Rows:
    plan = PlannedArchive.of(ReadOptions.of({"path": str(path), **options})).plan
    rows = [row for part in plan.parts() for batch in plan.read(part) for row in batch.to_pylist()]
    return [row for row in rows if options.get("kind") != "transactions" or row["status"] in ONCE_COMMITTED]


def same(rows: Rows) -> Counter[str]:
    return Counter(map(repr, rows))


class Checkpoint:
    """A query's checkpoint, and the rows that it has committed."""

    def __init__(self, path: Path, **options: str) -> None:
        self.path, self.options = path, options
        self.offset, self.rows, self.sizes = StreamOffset(), Rows(), list[int]()

    def run(self, stream: ArchiveStream | None = None) -> None:
        """One micro-batch, if there is anything new. stream: that of a running query; a new one after a restart."""
        stream = stream_of(self.path, **self.options) if stream is None else stream
        end = self.written(stream.latest(self.offset))
        if end != self.offset:
            self.commit(end, rows_in(stream.parts(self.offset, end)))

    def commit(self, end: StreamOffset, rows: Rows) -> None:
        self.offset = end
        self.rows += rows
        self.sizes.append(len(rows))

    @staticmethod
    def written(offset: StreamOffset) -> StreamOffset:
        return StreamOffset.of_json(json.loads(json.dumps(offset.to_json())))


@pytest.mark.parametrize(("slot", "kind"), ARCHIVES)
def test_micro_batches_have_the_rows_of_a_batch(slot: str, kind: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, kind=kind)
    for _ in _land_halves(DATA / slot, tmp_path):
        checkpoint.run()
    want = batch_rows(tmp_path, kind=kind)
    assert same(checkpoint.rows) == same(want)
    assert len([size for size in checkpoint.sizes if size]) > 1 or not want or kind == "messages"


def _land_halves(slot: Path, landing: Path) -> Iterator[None]:
    """Lands a slot's files one after another: each at first up to a position within a message."""
    for file in files_of(slot):
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        target = landing / file.name.removesuffix(".gz")
        for size in (len(content) // 2 + 1, len(content)):
            target.write_bytes(content[:size])
            yield


def eventful() -> list[bytes]:
    """Files with everything that is given late, twice, or never: transactions that are open across files, sent again
    after reconnects, cut off, aborted, prepared, and Messages outside of transactions."""
    first = [
        Message(None, False, 50, "app", b"x"),
        *transaction(1, 100, table(), insert("1", "a"), Message(None, True, 90, "app", b"y")),
        *segment(2, insert("2", "a"), in_subtransaction(4, insert("3", "a")), first=True),
        *transaction(3, 150, insert("4", "a")),
        *prepared(6, insert("5", "a"), lsn=160),
        *prepared(7, insert("6", "a"), lsn=170),
    ]
    second = [
        *segment(2, insert("7", "a")),
        *stream_abort(2, 4),
        *rollback_prepared(7),
        *transaction(8, 200, update("1", "b"), truncate()),
        Message(None, False, 210, "app", b"z"),
        *stream_commit(2, 220),
        *segment(9, insert("8", "a"), first=True),
    ]
    again = [  # a new connection
        Message(None, False, 210, "app", b"z"),
        *transaction(8, 200, table(), update("1", "b"), truncate()),
        *segment(2, insert("2", "a"), insert("7", "a"), first=True),
        *stream_commit(2, 220),
        *transaction(10, 230, insert("9", "a")),
        *segment(9, insert("8", "a"), first=True),
        *commit_prepared(6, 240),
    ]
    third = [*segment(9, insert("10", "a")), *stream_commit(9, 250), Message(None, False, 260, "app", b"end")]
    contents = [copydata(messages, 0x1000000 * n) for n, messages in enumerate((first, second, again, third), 1)]
    # A receiver died while it wrote, and went on in the same file.
    return [contents[0], contents[1] + copydata(transaction(10, 230, insert("9", "a")), 0x2800000)[:-9], *contents[2:]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("is_one_file", "step"), [(False, 151), pytest.param(True, 151, marks=SOAK), *SMALL_STEPS])
def test_a_micro_batch_may_end_anywhere(kind: str, is_one_file: bool, step: int, tmp_path: Path) -> None:
    """Also: a query may die anywhere, and repeats its micro-batch when the archive has grown. step: bytes that land at
    a time."""
    options = {"kind": kind, "on_error": "quarantine"}
    restarted, running, died = (Checkpoint(tmp_path, **options) for _ in range(3))
    stream = stream_of(tmp_path, **options)
    left: StreamOffset | None = None  # the end of a micro-batch that has not been committed
    for number, content in enumerate([b"".join(eventful())] if is_one_file else eventful()):
        for size in range(1, len(content) + step, step):
            (tmp_path / f"{number}.bin").write_bytes(content[:size])
            restarted.run()
            running.run(stream)
            if left is not None:
                died.commit(left, rows_in(stream_of(tmp_path, **options).parts(died.offset, left)))
            left = died.written(stream_of(tmp_path, **options).latest())
    died.run()
    want = batch_rows(tmp_path, **options)
    assert len(want) == {"changes": 10, "messages": 4, "transactions": 7}[kind]
    for checkpoint in (restarted, running, died):
        assert same(checkpoint.rows) == same(want)
        assert len([size for size in checkpoint.sizes if size]) >= 3


def landed(folder: Path, **files: Messages) -> None:
    for name, messages in files.items():
        (folder / f"{name}.bin").write_bytes(copydata(messages, int(name[1:]) << 24))


A1 = transaction(1, 100, table(), insert("1", "a"))
A2 = transaction(2, 200, insert("2", "a"))
A3 = transaction(3, 300, insert("3", "a"))


def ids(rows: Rows) -> list[str]:
    return [json.loads(row["after"])["id"] for row in rows]


def test_nothing_new_is_no_micro_batch(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    assert stream.latest() == StreamOffset()
    landed(tmp_path, f1=A1)
    end = stream.latest()
    assert end == stream.latest(end) == stream_of(tmp_path).latest(end)
    assert end.to_json() == {
        **end.to_json(),
        "lsn": "0/64",
        "file": str(tmp_path / "f1.bin"),
        "reread": str(tmp_path / "f1.bin"),
        "size": (tmp_path / "f1.bin").stat().st_size,
        "before": 0,
    }


def test_a_target_does_not_move(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1)
    stream = stream_of(tmp_path)
    target = stream.latest()
    landed(tmp_path, f2=A2)
    assert stream.latest(StreamOffset(), target) == stream.latest(target, target) == target
    assert ids(rows_in(stream.parts(StreamOffset(), target))) == ["1"]


def test_bytes_that_land_after_planning_are_in_the_next_micro_batch(tmp_path: Path) -> None:
    landed(tmp_path, f1=[*A1, *A2])
    file, stream = tmp_path / "f1.bin", stream_of(tmp_path)
    parts = stream.parts(StreamOffset(), stream.latest())
    # A receiver connects again, and appends: in the new epoch, the LSN alone does not show that 200 is a resent one.
    file.write_bytes(file.read_bytes() + copydata([*A2, *A3], 0x2000000))
    assert ids(rows_in(parts)) == ["1", "2"]
    checkpoint = Checkpoint(tmp_path)
    checkpoint.offset = stream.latest(StreamOffset())
    assert checkpoint.offset.lsn == 300


def test_a_replaced_file_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1, f2=A2)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run()
    file, content = tmp_path / "f2.bin", (tmp_path / "f2.bin").read_bytes()
    landed(tmp_path, f2=transaction(2, 200, insert("2", "b")), f3=A3)
    with pytest.raises(ArchiveError, match=rf"f2\.bin: .* other contents of its first {len(content):,} bytes: exp"):
        checkpoint.run()
    running = stream_of(tmp_path)
    with pytest.raises(ArchiveError, match="other contents"):  # Spark 4.0 asks without a start
        running.parts(checkpoint.offset, running.latest())
    landed(tmp_path, f2=[])
    with pytest.raises(ArchiveError, match=rf"f2\.bin: expected at least {len(content):,} bytes, .*, found 0"):
        checkpoint.run()
    file.unlink()
    with pytest.raises(ArchiveError, match=r"f2\.bin: the stream has read it and still needs it, but it is missing"):
        checkpoint.run()
    file.write_bytes(content)
    checkpoint.run()
    assert ids(checkpoint.rows) == ["1", "2", "3"]


def test_a_running_stream_notices_a_replaced_file_before_an_offset_is_written(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1)
    stream, restarted = stream_of(tmp_path), stream_of(tmp_path)
    end = stream.latest()
    restarted.parts(StreamOffset(), end)
    landed(tmp_path, f1=transaction(1, 100, table(), insert("1", "b")), f2=A2)
    for one in (stream, restarted):
        with pytest.raises(ArchiveError, match=r"f1\.bin: the stream has read other contents"):
            one.latest()


def test_files_with_an_open_transaction_are_still_needed(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1, f2=segment(2, insert("2", "a"), first=True), f3=A3)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run()
    assert checkpoint.offset.reread == str(tmp_path / "f2.bin")
    content = (tmp_path / "f2.bin").read_bytes()
    landed(tmp_path, f2=segment(2, insert("2", "b"), first=True), f4=stream_commit(2, 400))
    with pytest.raises(ArchiveError, match=r"f3\.bin: .* other contents .*, and the files from .*f2\.bin on: exp"):
        checkpoint.run()
    (tmp_path / "f2.bin").write_bytes(content)
    checkpoint.run()
    assert ids(checkpoint.rows) == ["1", "3", "2"]


def test_a_file_that_lands_late_is_an_error(tmp_path: Path) -> None:
    landed(tmp_path, a1=A1, c3=A3)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run()
    landed(tmp_path, b2=A2)
    with pytest.raises(ArchiveError, match=r"c3\.bin: expected 1 file or fewer before it, .* found 2: a file landed"):
        checkpoint.run()


def test_files_may_be_compressed_and_old_ones_removed(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1, f2=transaction(2, 200, table(), insert("2", "a")))
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run()
    (tmp_path / "f2.bin.gz").write_bytes(gzip.compress((tmp_path / "f2.bin").read_bytes()))
    (tmp_path / "f2.bin").unlink()
    assert stream_of(tmp_path).latest(checkpoint.offset) == checkpoint.offset
    (tmp_path / "f1.bin").unlink()
    landed(tmp_path, f3=A3)
    checkpoint.run()
    assert ids(checkpoint.rows) == ["1", "2", "3"]


def test_a_removed_description_is_missed(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1, f2=A2)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run()
    (tmp_path / "f1.bin").unlink()
    landed(tmp_path, f3=A3)
    with pytest.raises(ArchiveError, match="no Relation message describes OID"):
        checkpoint.run()


def test_new_columns_end_a_running_stream_of_a_table(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1)
    checkpoint, stream = Checkpoint(tmp_path, tables="public.t"), stream_of(tmp_path, tables="public.t")
    checkpoint.run(stream)
    landed(tmp_path, f2=transaction(2, 200, table("id", "v", "w"), insert("2", "a", "b")))
    with pytest.raises(ArchiveError, match=r"public\.t: its columns have changed since the stream was loaded: load it"):
        checkpoint.run(stream)
    checkpoint.run()
    assert [(row["id"], row.get("w")) for row in checkpoint.rows] == [("1", None), ("2", "b")]


def test_options_narrow_a_stream(tmp_path: Path) -> None:
    outside = Message(None, False, 250, "app", b"x")
    landed(tmp_path, f1=A1)
    narrow, messages = Checkpoint(tmp_path, from_lsn="0/C8"), Checkpoint(tmp_path, kind="messages", from_lsn="0/C8")
    narrow.run()
    messages.run()
    landed(tmp_path, f2=[*A2, outside, *transaction(3, 300, insert("3", "a"), Message(None, True, 290, "app", b"y"))])
    narrow.run()
    messages.run()
    assert ids(narrow.rows) == ["2", "3"]
    assert [row["content"] for row in messages.rows] == [b"y"], "as in a batch: one without a commit has no LSN"
    [first, second] = [stream_of(tmp_path).parts(StreamOffset(), end) for end in (StreamOffset(100), StreamOffset(200))]
    assert [[Path(path).name for path in part.files or ()] for part in first] == [["f1.bin"]]
    assert [Path(path).name for part in second for path in part.files or ()] == ["f1.bin", "f2.bin"]


def test_a_commit_may_begin_where_a_message_ends(tmp_path: Path) -> None:
    """BEGIN; a transactional Message; one outside of the transaction; COMMIT. A micro-batch ends before the Begin."""
    outside = Message(None, False, 100, "app", b"outside")
    landed(tmp_path, f1=[outside])
    checkpoint = Checkpoint(tmp_path, kind="messages")
    checkpoint.run()
    landed(tmp_path, f2=transaction(1, 100, Message(None, True, 90, "app", b"inside")))
    checkpoint.run()
    landed(tmp_path, f3=[outside, Message(None, False, 140, "app", b"next")])
    checkpoint.run()
    assert [row["content"] for row in checkpoint.rows] == [b"outside", b"inside", b"next"]
    assert checkpoint.sizes == [1, 1, 1]


def test_masks_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOUTPUT_ETL_SALT", ENVIRON["PGOUTPUT_ETL_SALT"])
    landing, config = tmp_path / "landing", tmp_path / "shop.yaml"
    landing.mkdir()
    config.write_text(
        f"source: {{name: shop, landing: {landing}}}\ntarget: {{root: out}}\n"
        "tables: [{match: public.t, columns: {v: {hash: sha256}}}]\n",
        encoding="utf-8",
    )
    landed(landing, f1=transaction(1, 100, table(), insert("1", "secret")))
    checkpoint = Checkpoint(landing, config=str(config))
    checkpoint.run()
    landed(landing, f2=transaction(2, 200, insert("2", "secret")))
    checkpoint.run()
    assert same(checkpoint.rows) == same(batch_rows(landing, config=str(config)))
    assert ids(checkpoint.rows) == ["1", "2"]
    assert "secret" not in repr(checkpoint.rows)


def test_files_of_a_url(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    rows: list[str] = []
    offset = StreamOffset()
    landed(tmp_path, f1=A1, f2=A2)
    for name in ("f1.bin", "f2.bin"):
        memory.pipe(f"/stream/{name}", (tmp_path / name).read_bytes())
        stream = stream_of("memory://stream")
        end = stream.latest(offset)
        rows += ids(rows_in(stream.parts(offset, end)))
        offset = end
    assert rows == ["1", "2"]


def test_relations_are_no_stream(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="option 'kind': expected changes, messages or transactions for a stream"):
        stream_of(tmp_path, kind="relations")


def test_the_offset_of_another_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected an offset of version 1, found 2"):
        StreamOffset.of_json({**StreamOffset().to_json(), "version": 2})


def test_a_damaged_archive_keeps_the_offset(tmp_path: Path) -> None:
    landed(tmp_path, f1=A1)
    checkpoint = Checkpoint(tmp_path)
    checkpoint.run()
    (tmp_path / "f2.bin").write_bytes(b"no messages of pgoutput at all, in any framing")
    with pytest.raises(ArchiveError, match="the option on_error to quarantine"):
        checkpoint.run()
    shutil.move(tmp_path / "f2.bin", tmp_path / "_f2.bin")
    landed(tmp_path, f3=A3)
    checkpoint.run()
    assert ids(checkpoint.rows) == ["1", "3"]

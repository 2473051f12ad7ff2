"""The benchmarks' generators write valid pgoutput messages, and their expected tables match those messages."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import corpora
from benchmarks.corpora import Corpus
from benchmarks.decoder_corpus import decoder_corpus
from benchmarks.landing_files import initial_cuts
from benchmarks.pgbench_corpus import pgbench
from benchmarks.streamed_corpus import streamed
from benchmarks.tables_corpus import many_tables
from benchmarks.wide_corpus import wide
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Framing, detect, frames, stands_in_stream
from pgoutput_etl.protocol.messages import PgoutputMessage, Relation, Update
from tests.support.encoder import encode


@pytest.fixture(autouse=True)
def build_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "BUILD", tmp_path)


def messages(folder: Path) -> list[PgoutputMessage]:
    """The messages of a folder. Also checks that the tests' encoder gives the same bytes."""
    decoded, in_stream = [], False
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for frame in frames(data, detect(data), in_stream):
            body = data[frame.start : frame.end]
            message = decode(body, in_stream)
            assert encode(message) == body
            in_stream = stands_in_stream(body[0], in_stream)
            decoded.append(message)
    return decoded


def kinds(folder: Path) -> dict[str, int]:
    return dict(Counter(type(message).__name__ for message in messages(folder)))


def test_pgbench() -> None:
    corpus = pgbench(120, 500, 5)
    assert kinds(corpus.second) == {"Begin": 120, "Relation": 4, "Update": 360, "Insert": 120, "Commit": 120}
    assert len([*corpus.second.iterdir()]) == corpus.landed.files == 5
    assert corpus.landed.messages == len(messages(corpus.second))


def test_expected_rows_of_pgbench_match_its_messages() -> None:
    corpus = pgbench(300, 40, 2)
    balance: dict[int, int] = {}
    for folder in (corpus.first, corpus.second):
        relations = {}
        for message in messages(folder):
            match type(message).__name__:
                case "Relation":
                    relations[message.oid] = message.name  # type: ignore[union-attr]
                case "Insert" | "Update" if relations[message.relation_oid] == "pgbench_accounts":  # type: ignore[union-attr]
                    aid, _, abalance, _ = message.new.values  # type: ignore[union-attr]
                    balance[int(aid or b"")] = int(abalance or b"")
    assert table(corpus, "pgbench_accounts", "aid", "abalance") == balance


def table(corpus: Corpus, name: str, key: str, value: str) -> dict[object, object]:
    """The expected values of a table, by key."""
    files = next(files for files in corpus.tables if files.name == name)
    rows = pq.read_table(files.net).to_pylist()
    values = {row[key]: row[value] for row in rows if not row["_delete"]}
    if files.kept is not None:
        values |= {row[key]: row[value] for row in pq.read_table(files.kept).to_pylist()}
    assert len(values) == files.final_rows
    return values


def test_a_streamed_transaction() -> None:
    corpus = streamed(26_000, 3)
    counts = kinds(corpus.second)
    assert counts["StreamStart"] == counts["StreamStop"] == 3
    assert counts["Insert"] + counts["Update"] + counts["Delete"] == 26_000
    assert (counts["StreamCommit"], counts["Relation"]) == (1, 1)
    assert counts["StreamAbort"] > 0
    assert len([*corpus.second.iterdir()]) == 3


def test_expected_rows_of_a_streamed_transaction_match_its_messages() -> None:
    corpus = streamed(26_000, 3)
    rows: dict[int, str] = {}
    second_night = messages(corpus.second)
    aborted = {m.subxid for m in second_night if type(m).__name__ == "StreamAbort"}  # type: ignore[union-attr]
    for message in [*messages(corpus.first), *second_night]:
        kind = type(message).__name__
        if kind not in ("Insert", "Update", "Delete") or message.xid in aborted:  # type: ignore[union-attr]
            continue
        if kind == "Delete":
            del rows[int(message.old.values[0] or b"")]  # type: ignore[union-attr]
        else:
            values = message.new.values  # type: ignore[union-attr]
            rows[int(values[0] or b"")] = (values[3] or b"").decode()
    assert table(corpus, "ledger", "id", "label") == rows


def test_wide_rows() -> None:
    corpus = wide(3000, 2)
    assert kinds(corpus.second) == {"Begin": 3, "Relation": 1, "Insert": 3000, "Commit": 3}
    assert len(table(corpus, "wide", "id", "text_0")) == 13_000


def test_many_tables() -> None:
    corpus = many_tables(3, 2, changed=2)
    assert kinds(corpus.first) == {"Begin": 1, "Relation": 3, "Insert": 3000, "Commit": 1}
    assert kinds(corpus.second) == {
        "Begin": 50, "Relation": 2, "Update": 60, "Insert": 20, "Delete": 20, "Commit": 50
    }  # fmt: skip
    assert [table.name for table in corpus.tables] == ["table_000", "table_001"]
    second = messages(corpus.second)
    pairs = [(a, b) for a, b in pairwise(second) if isinstance(a, Relation)]
    assert all(isinstance(b, Update) and b.relation_oid == a.oid for a, b in pairs), "as pgoutput sends them"


def test_the_decoders_corpus() -> None:
    corpus = decoder_corpus(4)
    assert kinds(corpus.second) == {"Begin": 4, "Relation": 1, "Insert": 400, "Update": 120, "Delete": 20, "Commit": 4}
    assert detect(next(corpus.second.iterdir()).read_bytes()) is Framing.LENGTH_PREFIXED


def test_the_first_night_of_a_large_table_has_a_file_for_each_million_rows() -> None:
    assert [len(initial_cuts(rows)) for rows in (100_000, 1_000_000, 1_000_001, 12_000_000)] == [0, 0, 1, 11]
    assert initial_cuts(3_000_000) == [1_000_000, 2_000_000]

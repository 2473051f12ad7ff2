"""The ledger's `messages` and the origins of transactions after nightly runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ledger.store import LedgerStore
from pgoutput_etl.protocol.messages import Message, Origin
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.core.transactions.test_logical_messages import counted_in_blocks
from tests.support.captures import DATA, files_of
from tests.support.jobs import Nights, held, summary_text
from tests.support.small_archives import (
    in_subtransaction,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
)

pytestmark = pytest.mark.spark


def emitted(content: str, lsn: int, xid: int | None = None) -> Message:
    return Message(xid, True, lsn, "outbox", content.encode())


def of_none(content: str, lsn: int) -> Message:
    return Message(None, False, lsn, "outbox", content.encode())


def stored(nights: Nights) -> list[tuple[str, int, int | None, int | None]]:
    """Content, batch, xid, and commit LSN."""
    rows = nights.ledger("messages")
    assert all((row["source"], row["prefix"]) == ("test", "outbox") for row in rows)
    assert all(row["transactional"] == (row["xid"] is not None) == (row["commit_ts"] is not None) for row in rows)
    return sorted((row["content"].decode(), row["batch"], row["xid"], row["commit_lsn"]) for row in rows)


@pytest.mark.soak
def test_messages_night_after_night(nights: Nights) -> None:
    """Waiting, rolled back and resent Messages; a night without any creates no table."""
    nights.night(transaction(1, 100, table(), insert("1", "a")))
    assert nights.ledger("messages") == []

    stream = segment(50, emitted("waits", 201, 50), in_subtransaction(51, emitted("dropped", 202)), first=True)
    first = transaction(2, 200, emitted("first", 150), insert("2", "b"))
    summary = nights.night(
        *(
            first,
            [of_none("none", 190), *stream],
            segment(60, emitted("aborted", 203, 60), first=True),
            stream_abort(60),
        )
    )
    assert stored(nights) == [("first", 2, 2, 200), ("none", 2, None, None)]
    assert summary.logical_messages == {"transactional": 1, "others": 1}
    assert "Logical decoding Messages: 1 transactional, 1 non-transactional." in summary_text(summary)
    waiting = nights.ledger("open_transactions")
    assert {row["tag"] for row in waiting} == {"M"}

    # Resent by a server that restarted before them; then the end of the stream.
    again = [of_none("none", 190), of_none("new", 205), of_none("new", 205)]
    nights.night(first, again, stream_abort(50, 51), stream_commit(50, 300))
    assert stored(nights) == [
        ("first", 2, 2, 200),
        ("new", 3, None, None),
        ("none", 2, None, None),
        ("waits", 3, 50, 300),
    ]
    assert nights.ledger("open_transactions") == []
    assert nights.job.run().files == 0
    assert len(stored(nights)) == 4


@pytest.mark.soak
def test_a_run_that_dies_around_its_messages_stores_them_once(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.land(transaction(1, 100, emitted("t", 90)), [of_none("n", 110)])
    append = LedgerStore.append

    def dies_after(self: LedgerStore, table: str, *rest: Any) -> None:
        append(self, table, *rest)
        if table == "messages":
            raise KeyboardInterrupt

    monkeypatch.setattr(LedgerStore, "append", dies_after)
    with pytest.raises(KeyboardInterrupt):
        nights.job.run()
    monkeypatch.undo()
    assert nights.job.run().exit_code == EXIT_DONE
    assert [row[0] for row in stored(nights)] == ["n", "t"]


@pytest.mark.soak
def test_messages_of_repaired_bytes_are_stored_once(nights: Nights) -> None:
    """The quarantined transaction changes no table, so no table is held, but it is redriven as well."""
    rows = [*transaction(1, 100, table(), insert("1", "a"), emitted("before", 90)), of_none("none", 110)]
    rows += transaction(2, 200, emitted("spoilt", 190))
    path = nights.land(rows, transaction(3, 300, emitted("behind", 290)))
    content = path.read_bytes()
    at = content.index(b"outbox\0\0\0\0\x06spoilt") - 9
    path.write_bytes(content[:at] + b"\x07" + content[at + 1 :])  # flags
    summary = nights.job.run()
    assert (summary.exit_code, summary.quarantined_transactions) == (EXIT_QUARANTINE, 1)
    before = [row for row in stored(nights) if row[0] != "spoilt"]
    assert [row[0] for row in before] == ["before", "behind", "none"]

    path.write_bytes(content)
    done = nights.job.backfill(BackfillRequest(None))
    assert done.exit_code == EXIT_DONE
    assert stored(nights) == sorted([*before, ("spoilt", done.batch, 2, 200)])
    assert nights.job.backfill(BackfillRequest(None)).batch == 0, "nothing is left to redrive"
    assert nights.night(transaction(4, 400, insert("4", "a"))).exit_code == EXIT_DONE


@pytest.mark.soak
@pytest.mark.parametrize("slot", ["pg16/v2_stream", "random16/v2"])
def test_messages_of_a_real_server(nights: Nights, slot: str) -> None:
    contents = []
    for number, path in enumerate(files_of(DATA / slot)):
        contents.append(path.read_bytes())
        (nights.job.landing / f"{number:03}.copydata.gz").write_bytes(contents[-1])
    nights.job.run()
    messages = [
        (row["prefix"], row["content"], row["lsn"], row["transactional"], row["xid"], row["commit_lsn"])
        for row in sorted(nights.ledger("messages"), key=lambda row: (row["file"], row["ordinal"]))
    ]
    expected, _, _ = counted_in_blocks(contents)
    assert messages == [
        (m["prefix"], m["content"], m["lsn"], m["transactional"], m["xid"], m["commit_lsn"]) for m in expected
    ]


def test_the_outbox_example_of_the_documentation(nights: Nights) -> None:
    events = ['{"event": "paid", "order": 7}', '{"event": "sent", "order": 7}']
    nights.night(transaction(5, 100, *(emitted(event, 50 + n) for n, event in enumerate(events))))
    text = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text(encoding="utf-8")
    [query] = [part.split("```")[0] for part in text.split("<!-- tested: outbox -->\n```sql\n")[1:]]
    path = nights.job.folder / "tables" / "_pgoutput_etl" / "messages"
    spark = nights.job.spark
    spark.read.format("delta").load(str(path)).createOrReplaceTempView("outbox_of_test")
    rows = spark.sql(
        query.replace("delta.`./warehouse/_pgoutput_etl/messages`", "outbox_of_test").replace("shop", "test")
    )
    assert [json.loads(row["event"]) for row in rows.collect()] == [json.loads(event) for event in events]


@pytest.mark.soak
def test_origins(nights: Nights) -> None:
    """Refused transactions are not applied, but recorded with their bytes. A backfill applies them once accepted."""
    skip = "source.origins={skip: [a]}"
    nights.job.overrides.append(skip)
    local = transaction(1, 100, table(), insert("1", "local"))
    a, b = (
        [changes[0], Origin(7, name), *changes[1:]]
        for changes, name in (
            (transaction(2, 200, insert("2", "a"), emitted("refused", 150)), "a"),
            (transaction(3, 300, insert("3", "b")), "b"),
        )
    )
    streamed = segment(4, insert("4", "a"), first=True)
    nights.land(local, a, b, [streamed[0], Origin(8, "a"), *streamed[1:]])
    summary = nights.job.run()
    assert (summary.refused_transactions, summary.exit_code) == (1, EXIT_DONE)
    assert summary.accounts["refused"] > 0
    assert "1 transaction: not applied, because the origin is refused." in summary_text(summary)
    summary = nights.night(stream_commit(4, 400), transaction(5, 500, insert("5", "local")))
    assert (summary.refused_transactions, summary.last_commit_lsn, held(summary)) == (1, 500, {})
    assert nights.values("t") == [("1", "local"), ("3", "b"), ("5", "local")]
    assert nights.ledger("messages") == []
    transactions = {
        row["xid"]: (row["fate"], row["origin"], row["origin_lsn"]) for row in nights.ledger("transactions")
    }
    assert transactions == {
        1: ("committed", None, None),
        2: ("refused", "a", 7),
        3: ("committed", "b", 7),
        4: ("refused", "a", 8),
        5: ("committed", None, None),
    }

    nights.job.overrides.remove(skip)
    nights.job.backfill(BackfillRequest(("public.t",)))
    assert nights.values("t") == [("1", "local"), ("2", "a"), ("3", "b"), ("4", "a"), ("5", "local")]
    nights.job.overrides.append(skip)
    nights.job.backfill(BackfillRequest(("public.t",)))
    assert nights.values("t") == [("1", "local"), ("3", "b"), ("5", "local")]


@pytest.mark.soak
def test_a_ledger_without_origins_is_continued(nights: Nights) -> None:
    nights.land(transaction(1, 100, table(), insert("1", "a")), segment(50, insert("2", "b"), first=True))
    nights.job.run()
    root = nights.job.folder / "tables" / "_pgoutput_etl"
    spark = nights.job.spark
    for name, columns in (("transactions", ["origin", "origin_lsn"]), ("open_transactions", ["origin", "origin_lsn"])):
        rows = spark.read.format("delta").load(str(root / name)).toArrow()
        older = spark.createDataFrame(rows.drop_columns(columns))
        older.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(str(root / name))
    nights.job.backfill(BackfillRequest(("public.t",)))
    assert nights.values("t") == [("1", "a")]
    nights.night(stream_commit(50, 300))
    assert nights.values("t") == [("1", "a"), ("2", "b")]


@pytest.mark.soak
def test_a_run_without_new_files_knows_the_time_of_the_last_commit(nights: Nights) -> None:
    nights.land(transaction(1, 100, table(), insert("1", "a")))
    assert nights.job.run().last_commit_time == 0
    assert nights.job.run().last_commit_time == 0

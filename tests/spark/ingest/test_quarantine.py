"""Unreadable bytes are quarantined with everything that depends on them, and the rest is applied."""

from __future__ import annotations

import pytest

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from tests.support.jobs import Nights, held, summary_text
from tests.support.small_archives import copydata, insert, table, transaction, update

pytestmark = pytest.mark.spark
A, B, C = (table(oid=oid, name=name) for oid, name in ((101, "a"), (102, "b"), (103, "c")))


def spoiled(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


@pytest.mark.soak
def test_an_unreadable_message_quarantines_its_transaction_and_the_rest_is_applied(nights: Nights) -> None:
    first = transaction(
        1, 100, A, insert("1", "x", oid=101), B, insert("1", "x", oid=102), C, insert("1", "x", oid=103)
    )
    second = transaction(2, 200, insert("2", "x", oid=101), insert("2", "x", oid=103))
    third = transaction(3, 300, insert("3", "spoilt", oid=101), insert("3", "x", oid=102))
    fourth = transaction(4, 400, insert("4", "x", oid=101), insert("4", "x", oid=102), insert("4", "x", oid=103))
    path = nights.land([*first, *second, *third, *fourth])
    content = path.read_bytes()
    at = content.index(b"t\x00\x00\x00\x06spoilt")
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])

    summary = nights.job.run()
    assert summary.exit_code == EXIT_QUARANTINE
    assert nights.values("a") == [("1", "x"), ("2", "x")], "up to the quarantined transaction"
    assert nights.values("b") == [("1", "x")], "its other tables stay unchanged"
    assert nights.values("c") == [("1", "x"), ("2", "x"), ("4", "x")], "tables without its changes continue"
    assert set(held(summary)) == {"a", "b"}
    assert summary.quarantined_transactions == 1
    text = summary_text(summary)
    assert "In quarantine: file:" in text
    assert "spoilt" not in text

    rows = nights.ledger("quarantine")
    [message] = [row for row in rows if row["bytes"] is not None and row["xid"] is None]
    assert (message["offset"], message["length"]) == (content.rindex(b"d", 0, at - 20), len(message["bytes"]))
    assert b"spoilt" in message["bytes"]
    assert message["path"].endswith("000.copydata")
    [part] = [row for row in rows if row["xid"] == 3]
    assert part["lsn"] == 300
    assert part["bytes"] == path.read_bytes()[part["offset"] : part["offset"] + part["length"]]
    assert {(row["schema"], row["table"]) for row in rows if row["relation"]} == {("public", "a"), ("public", "b")}
    assert all("spoilt" not in (row["reason"] or "") for row in rows)

    next_night = nights.night(transaction(5, 500, insert("5", "x", oid=101), insert("5", "x", oid=103)))
    assert next_night.exit_code == EXIT_QUARANTINE, "two tables are still held"
    assert nights.values("a") == [("1", "x"), ("2", "x")]
    assert nights.values("c") == [("1", "x"), ("2", "x"), ("4", "x"), ("5", "x")]
    assert len(nights.ledger("quarantine")) == len(rows), "nothing new is in quarantine"


def test_on_error_fail_stops_before_any_write(nights: Nights) -> None:
    path = nights.land(transaction(1, 100, A, insert("1", "spoilt", oid=101)))
    path.write_bytes(spoiled(path.read_bytes(), b"t\x00\x00\x00\x06spoilt", b"?\x00\x00\x00\x06spoilt"))
    with pytest.raises(ArchiveError, match=r"000\.copydata: offset \d+ \(LSN 0/1000002\), message 2: Insert.*0x3F"):
        nights.job.run("on_error=fail")
    written = {path.parent.name for path in nights.job.folder.glob("tables/**/_delta_log")}
    assert written <= {"claims"}


def test_a_message_torn_by_a_dead_receiver_loses_nothing_once_resent(nights: Nights) -> None:
    first = transaction(1, 100, A, insert("1", "x", oid=101))
    second = transaction(2, 200, insert("2", "x", oid=101), update("1", "y", oid=101))
    again = transaction(2, 200, A, insert("2", "x", oid=101), update("1", "y", oid=101))
    killed = copydata([*first, *second])[:-50]
    path = nights.job.landing / "000.copydata"
    path.write_bytes(killed + copydata([*again, *transaction(3, 300, insert("3", "x", oid=101))]))
    nights.landed += 1

    summary = nights.job.run()
    assert nights.values("a") == [("1", "y"), ("2", "x"), ("3", "x")]
    assert held(summary) == {}
    assert summary.exit_code == EXIT_QUARANTINE, "the torn bytes are in quarantine"
    [torn] = nights.ledger("quarantine")
    assert torn["offset"] + torn["length"] == len(killed)
    assert "the server sent it again" in torn["reason"]
    assert nights.night(transaction(4, 400, insert("4", "x", oid=101))).exit_code == EXIT_DONE


@pytest.mark.soak
def test_unreadable_bytes_between_transactions_hold_the_tables_they_may_concern(nights: Nights) -> None:
    """An unrecognizable message may concern any table: all are held, and none is wrong."""
    first = transaction(1, 100, A, insert("1", "x", oid=101), B, insert("1", "x", oid=102))
    second = transaction(2, 200, insert("2", "x", oid=101))
    path = nights.land([*first, *second])
    rows = copydata(first)
    junk = b"d\x00\x00\x01\x00w" + bytes(24) + b"?" * (256 - 29)
    path.write_bytes(rows + junk + copydata(second))
    summary = nights.job.run()
    assert summary.exit_code == EXIT_QUARANTINE
    assert set(held(summary)) == {"a", "b"}
    assert nights.values("a") == [("1", "x")]
    nights.night(transaction(3, 300, C, insert("1", "x", oid=103)))
    assert nights.values("c") == [], "its first rows may be unreadable"

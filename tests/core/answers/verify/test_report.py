"""The checks of jobs/verify.py that need no Spark, and its report."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console

from pgoutput_etl.answers.verify.report import (
    AskedMoment,
    Difference,
    LastWriter,
    VerifiedTable,
    VerifySummary,
    print_verification,
)
from pgoutput_etl.answers.verify.request import VerifyRequest, batch_at, refuse_commits_between
from pgoutput_etl.errors import ConfigError, RunError

URL = "jdbc:postgresql://db:5432/shop"
SERVER = "postgresql://db:5432/shop"
TABLE = VerifiedTable("public", "orders", rows=10, other_rows=11, ranges=4, ranges_differing=1)
WRITER = LastWriter(77, 0x16_0000_0001, "2026-03-01T02:00:00.000000Z", 3)
ROW = Difference("differs", 1, ("price",), 77, 0x16_0000_0001, "2026-03-01T02:00:00.000000Z")


def printed(summary: VerifySummary) -> str:
    text = StringIO()
    print_verification(summary, Console(file=text, width=200))
    return text.getvalue()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (VerifyRequest(), "one of --server, --jdbc, --csv and --delta"),
        (VerifyRequest(csv="a", delta="b"), "one of --server, --jdbc, --csv and --delta"),
        (VerifyRequest(csv="a"), "expected --tables schema.table"),
        (VerifyRequest(csv="a", tables=("a.b",), at="8412"), "at: expected a commit: not a moment: '8412'"),
        (VerifyRequest(jdbc=URL, at=1), "--at is for"),
        (VerifyRequest(jdbc="jdbc:mysql://db/x"), "expected postgresql:"),
        (VerifyRequest(jdbc=f"{URL}?user=etl&password=SECRET"), "PGPASSWORD"),
        (VerifyRequest(jdbc="jdbc:postgresql://etl:SECRET@db/shop"), "PGPASSWORD"),
        (VerifyRequest(server="db/shop"), "expected postgresql:"),
        (VerifyRequest(csv="a", tables=("a.b",), publications=("p",)), "hold one table"),
        (VerifyRequest(server=f"{SERVER}?password=SECRET"), "PGPASSWORD"),
        (VerifyRequest(server="postgresql://etl:SECRET@db/shop"), "PGPASSWORD"),
        (VerifyRequest(server=SERVER, at=1), "--at is for"),
        (VerifyRequest(server=SERVER, begin=True, finish=True), "--begin only asks"),
        (VerifyRequest(server=SERVER, begin=True, wait=timedelta(minutes=1)), "--begin only asks"),
        (VerifyRequest(finish=True, tables=("*",)), "--finish compares the tables"),
        (VerifyRequest(finish=True, since=True), "--finish compares the tables"),
        (VerifyRequest(jdbc=URL, begin=True), "are for --server"),
        (VerifyRequest(jdbc=URL, since=True), "are for --server"),
        (VerifyRequest(jdbc=URL, checks_only=True), "are for --server"),
        (VerifyRequest(server=URL, checks_only=True, begin=True), "--check: expected --server, without --begin"),
        (VerifyRequest(csv="a", tables=("a.b",), finish=True), "--finish|are for --server"),
        (VerifyRequest(jdbc=URL, connections=0), "--connections"),
        (VerifyRequest(jdbc=URL, limit=-1), "--limit"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(request_: VerifyRequest, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        request_.check()
    assert "SECRET" not in str(error.value)


def test_valid_requests_pass() -> None:
    for request in (VerifyRequest(jdbc=f"{URL}?user=etl"), VerifyRequest(csv="a", tables=("a.b",), at=1)):
        request.check()
    for request in (VerifyRequest(server=f"{SERVER}?user=etl", wait=timedelta(0)), VerifyRequest(finish=True)):
        request.check()
    assert VerifyRequest(jdbc=f"{URL}?user=etl").url == f"{SERVER}?user=etl"


def test_batch_at_an_lsn() -> None:
    points = [(1, 0x100), (2, 0x200), (3, 0x200), (4, 0x300)]
    assert batch_at(points, 0x200) == (3, 0x200), "a backfill reads nothing new"
    assert batch_at(points, 0x2FF) == (3, 0x200)
    assert batch_at(points, 0x999) == (4, 0x300)
    with pytest.raises(RunError, match="--at 0/FF: no batch ended at or before it; the first batch ended at 0/100"):
        batch_at(points, 0xFF)
    with pytest.raises(RunError, match="no batch is done yet"):
        batch_at([], 0xFF)


def test_an_lsn_in_the_middle_of_a_batch_is_refused() -> None:
    refuse_commits_between(0x250, 0x200, None)
    with pytest.raises(RunError, match=r"no batch ended there.* 0/200, and the next batch applied the commit at 0/210"):
        refuse_commits_between(0x250, 0x200, 0x210)


def test_a_summary_without_differences() -> None:
    same = replace(TABLE, other_rows=10, ranges_differing=0)
    summary = VerifySummary("shop", "rows.csv", 0x200, (same, replace(same, table="lines", rows=2300, other_rows=2300)))
    assert summary.exit_code == 0
    verdict, *lines = printed(summary).splitlines()
    assert verdict == "Equal: 2 tables, 2,310 rows, as of LSN 0/200, compared with rows.csv."
    assert [word.strip() for word in lines[1].strip("┃").split("┃")] == ["table", "rows"], "no column of zeros"
    one = VerifySummary("shop", "rows.csv", 0x200, (replace(same, rows=1, other_rows=1),))
    assert printed(one).startswith("Equal: 1 table, 1 row, as of LSN 0/200")


def test_ranges_that_were_skipped() -> None:
    part = replace(TABLE, other_rows=10, ranges_differing=0, ranges_skipped=3)
    tables = part, replace(part, table="lines", ranges=1, ranges_skipped=1)
    text = printed(VerifySummary("shop", SERVER, 0x200, tables))
    assert "Not compared: 4 of 5 ranges, in which no row was written since" in text
    assert "Not compared" not in printed(VerifySummary("shop", SERVER, 0x200, (replace(part, ranges_skipped=0),)))


def test_what_can_only_be_settled_later() -> None:
    same, asked = replace(TABLE, other_rows=10, ranges_differing=0), AskedMoment(0x300, "2026-03-01T02:00:00+00:00", ())
    behind = replace(asked, tables=("public.lines",))
    first = VerifySummary("shop", SERVER, 0x300, (same,), asked=behind, is_decided=False)
    assert (first.exit_code, replace(first, is_decided=True).exit_code) == (75, 0)
    held = replace(first, tables=(replace(TABLE, why_not="held", is_held=True),))
    assert (held.exit_code, replace(held, is_decided=True).exit_code) == (75, 3)
    text = " ".join(printed(first).split())
    assert "Asked the server at 2026-03-01T02:00:00+00:00, as of LSN 0/300, which no apply has passed yet" in text
    assert "1 table that Delta may only lag behind in: public.lines." in text
    again = printed(VerifySummary("shop", SERVER, 0x200, (same,), asked=asked))
    assert "it equals Delta already" in again
    lost = VerifySummary("shop", SERVER, 0x200, (same, replace(TABLE, why_not="ask again", is_undecided=True)))
    assert (lost.exit_code, replace(lost, asked=asked).exit_code) == (75, 0)
    unread = VerifySummary("shop", SERVER, 0x200, (replace(same, ranges_differing=1, rows_unread=20_000),))
    assert unread.exit_code == 3
    assert "20,000 rows in ranges that differ" in printed(unread)


def test_the_next_command_follows_the_differences() -> None:
    command = (
        "./spark-submit.sh jobs/backfill.py --config conf/a-configuration-with-a-long-name.yaml --tables public.orders"
    )
    differing = replace(TABLE, only_other=1)
    summary = VerifySummary("shop", "rows.csv", 0x200, (differing,), next_command=command * 2)
    assert f"  {command * 2}" in printed(summary).splitlines(), "in one line, whatever its length"
    assert json.loads(summary.to_json())["next_command"] == command * 2


def test_differences_name_columns_and_last_writers() -> None:
    differing = replace(
        TABLE,
        only_other=1,
        differs=3,
        columns={"price": 3},
        unknown=5,
        by_value=("f",),
        not_compared={"g": "the archive has no such column"},
        transactions=(WRITER,),
        differences=(ROW,),
    )
    summary = VerifySummary("shop", URL, 0x200, (differing,), ("0/300", "0/308"))
    text = printed(summary)
    assert summary.exit_code == 3
    for line in (
        "ended at 0/300 before the comparison and at 0/308 after it. Rows written after 0/200 may appear",
        "column g: not compared: the archive has no such column",
        "compared by value, not by spelling: f",
        "values never sent to the archive, not compared: 5",
        "differing: price (3 rows)",
        "3 rows last touched by transaction 77, committed at 16/1, 2026-03-01T02:00:00.000000Z",
        "differs; in price; last touched by transaction 77 at 16/1",
        "… and 3 more differing rows; --limit lists more",
    ):
        assert line in text
    assert text.startswith(f"1 of 1 table differs, as of LSN 0/200, compared with {URL}: public.orders.")
    assert json.loads(summary.to_json())["tables"][0]["differences"][0]["delta"] is None


def test_values_are_printed_on_request_without_escape_sequences() -> None:
    shown = replace(ROW, delta={"id": "1", "price": "\x1b[31m"}, other={"id": "1", "price": None})
    text = printed(VerifySummary("shop", "x", 1, (replace(TABLE, differs=1, differences=(shown,)),)))
    assert "Delta: id='1', price='\\x1b[31m'; other side: id='1', price=NULL" in text.replace(" \n", " ")
    assert "\x1b" not in text


def test_keys_are_printed_on_request() -> None:
    shown = replace(ROW, key={"id": "1"})
    text = printed(VerifySummary("shop", "x", 1, (replace(TABLE, differs=1, differences=(shown,)),)))
    assert "key: id='1'" in text
    assert "more differing row" not in text


def test_a_held_table_counts_as_different() -> None:
    held = VerifiedTable("public", "odd", why_not="the table is held: why", is_held=True)
    other = VerifiedTable("public", "log", why_not="mode append")
    assert VerifySummary("shop", "x", 1, (TABLE, held)).exit_code == 3
    assert VerifySummary("shop", "x", 1, (TABLE, other)).exit_code == 0
    assert "Not compared: public.odd: the table is held: why" in printed(VerifySummary("shop", "x", 1, (held,)))
    text = printed(VerifySummary("shop", "x", 1, (TABLE, held)))
    assert text.startswith(
        "Equal: 1 table, 10 rows, as of LSN 0/1, compared with x. Held, missing, or unreadable: public.odd."
    )
    assert printed(VerifySummary("shop", "x", 1, (held,))).startswith("Nothing was compared")

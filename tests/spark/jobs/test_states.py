"""The states of tables that every run names until a command mends them, or the configuration accepts them.

Mismatches are written into the ledger: what counts them is tested with each way of writing a table.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ledger.tables import SCHEMAS, table_row, table_state
from pgoutput_etl.targets.condition import ConditionKind
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.files.summary import found_nothing
from pgoutput_etl.work.plan.run import plan
from tests.spark.jobs.test_snapshot import begin_repair, load
from tests.support.jobs import Nights, held, summary_text
from tests.support.small_archives import T, delete, insert, table, transaction, truncate, update

pytestmark = pytest.mark.spark

MANUAL = "source.snapshot=manual"
FOUND = Mismatches(2, 0, 0x100, 1)
OF_T = BackfillRequest(tables=("public.t",))


def states(summary: RunSummary) -> dict[str, str]:
    return {condition.table: condition.state.value for condition in summary.conditions}


def contradict(nights: Nights, oid: int = T) -> None:
    """Records mismatches of a table with the last batch."""
    path = f"{nights.job.folder}/tables/_pgoutput_etl/batches"
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    last = max((row for row in rows if row["status"] == "done"), key=lambda row: int(row["batch"]))
    known = {row["oid"]: table_state(row) for row in last["tables"]}
    known[oid] = replace(known[oid], mismatches=FOUND)
    last["tables"] = [table_row(state) for state in known.values()]
    write_deltalake(path, pa.Table.from_pylist(rows, SCHEMAS["batches"]), mode="overwrite")


def columns_of_t(nights: Nights, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in nights.job.rows("public", "t"))


def manifest_state(nights: Nights) -> str | None:
    path = nights.job.folder / "tables" / "_pgoutput_etl" / "manifests" / "test.json"
    [shown] = json.loads(path.read_text())["tables"]
    state: str | None = shown["state"]
    return state


def test_a_table_is_incomplete_until_a_snapshot_has_its_earlier_rows(nights: Nights) -> None:
    nights.land(transaction(1, 0x100, table(), insert("2", "b")))
    planned = plan(nights.job.spark, nights.job.loaded(MANUAL))
    assert ([c.state for c in planned.conditions], planned.exit_code) == ([ConditionKind.INCOMPLETE], EXIT_QUARANTINE)
    assert plan(nights.job.spark, nights.job.loaded()).exit_code == EXIT_DONE

    first = nights.job.run(MANUAL)
    again = nights.job.run(MANUAL)
    for summary in (first, again, found_nothing(again)):
        assert (states(summary), summary.exit_code) == ({"t": "incomplete"}, EXIT_QUARANTINE)
        assert "All tables but public.t (incomplete) are consistent through LSN 0/100." in summary_text(summary)
        [step] = summary.next
        assert " snapshot --config " in step.command
        assert "source.snapshot: accept" in step.reason
    assert "Incomplete: earlier rows, if there were any, are missing: public.t." in summary_text(again)
    assert manifest_state(nights) == "incomplete"
    known = plan(nights.job.spark, nights.job.loaded(MANUAL))
    assert (known.exit_code, [step.command for step in known.next]) == (EXIT_QUARANTINE, [again.next[0].command])

    accepted = nights.job.run()
    assert (states(accepted), accepted.exit_code, accepted.next) == ({}, EXIT_DONE, ())
    assert "All tables are consistent through LSN 0/100." in summary_text(accepted)

    assert load(nights, 0x101, [("1", "a"), ("2", "b")]).exit_code == EXIT_DONE
    assert (states(nights.job.run(MANUAL)), manifest_state(nights)) == ({}, None)
    assert nights.values("t") == [("1", "a"), ("2", "b")]

    nights.land(transaction(2, 0x200, table(oid=2, name="u"), insert("2", "b", oid=2)))
    nights.land(transaction(3, 0x300, truncate(2), insert("3", "c", oid=2)))
    assert states(nights.job.run(MANUAL, "merge.max_transactions=1")) == {}, "completed by a TRUNCATE within the run"


@pytest.mark.soak
def test_the_first_summary_with_an_accepted_table_says_so(nights: Nights) -> None:
    first = nights.night(transaction(1, 0x100, table(), insert("2", "b")))
    assert "No snapshot: rows older than the archive, if any, are missing from public.t." in summary_text(first)
    assert (first.exit_code, states(first)) == (EXIT_DONE, {})
    again = nights.night(transaction(2, 0x200, insert("3", "c")))
    assert "are missing" not in summary_text(again)


def test_a_diverged_table_is_named_until_it_is_rebuilt(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), truncate(), insert("1", "a"), insert("2", "b")))
    contradict(nights)
    second = nights.night(transaction(2, 0x200, update("1", "aa")))
    for summary in (second, nights.job.run()):
        assert (states(summary), summary.exit_code) == ({"t": "diverged"}, EXIT_QUARANTINE)
        assert "Diverged: public.t: 2 UPDATEs or DELETEs met no row; the first was" in summary_text(summary)
    assert nights.values("t") == [("1", "aa"), ("2", "b")], "it is applied further"
    assert nights.job.run("tables=[{match: public.t, on_missing_row: ignore}]").exit_code == EXIT_DONE

    nights.night(transaction(3, 0x300, delete("1", None)))  # the range's UPDATE no longer meets its row
    ranged = nights.job.backfill(replace(OF_T, from_lsn=0x200))
    assert [t.how for t in ranged.tables] == ["rows of the range"]
    assert (ranged.exit_code, ranged.conditions[0].mismatches) == (EXIT_QUARANTINE, FOUND), "other rows may be wrong"
    assert states(nights.job.run()) == {"t": "diverged"}
    rebuilt = nights.job.backfill(OF_T)
    assert (rebuilt.exit_code, rebuilt.next, states(nights.job.run())) == (EXIT_DONE, (), {})


def test_a_table_is_ambiguous_until_somebody_declares_what_happened(nights: Nights) -> None:
    int4, bigint = 23, 20
    before, after = table("id", ("n", int4), "v"), table("id", ("n", bigint), ("total", int4))
    nights.night(transaction(1, 0x100, before, truncate(), insert("1", "10", "a")))
    first = nights.night(transaction(2, 0x200, after, insert("2", "5000000000", "7")))
    for summary in (first, nights.job.run()):
        assert (states(summary), summary.exit_code) == ({"t": "ambiguous"}, EXIT_QUARANTINE)
        text = " ".join(summary_text(summary).split())
        assert "columns: {total: added}, or columns: {total: {renamed_from: v}}" in text
        assert "columns: {n: {renamed_from: n}}, or columns: {n: added}" in text
        assert "All tables but public.t (ambiguous) are consistent" in text
        assert " backfill --config " in summary.next[0].command
    assert columns_of_t(nights, "id", "n", "total", "v") == [("1", 10, None, "a"), ("2", 5000000000, 7, None)]
    assert manifest_state(nights) == "ambiguous"

    read = "tables=[{match: public.t, columns: {total: added, n: {renamed_from: n}}}]"
    assert states(nights.job.run(read)) == {}
    other = "tables=[{match: public.t, columns: {total: {renamed_from: v}, n: {renamed_from: n}}}]"
    [condition] = nights.job.run(other).conditions
    assert condition.reason == "the declaration of total contradicts what was applied: rebuild the table"
    rebuilt = nights.job.backfill(OF_T, other)
    assert (rebuilt.exit_code, states(nights.job.run(other))) == (EXIT_DONE, {})
    assert columns_of_t(nights, "id", "n", "total") == [("1", 10, None), ("2", 5000000000, 7)]

    assert states(nights.job.run()) == {}, "the declaration was applied"
    nights.night(transaction(3, 0x300, table("id", ("n", bigint), ("sum", int4)), insert("3", "1", "2")))
    assert states(nights.job.run()) == {"t": "ambiguous"}
    nights.night(transaction(4, 0x400, truncate(), insert("4", "1", "2")))
    assert states(nights.job.run()) == {}, "no row is left that may be wrong"


def test_a_change_of_a_missing_row_is_applied_or_holds_the_table(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), truncate(), insert("1", "a")))
    nights.land(transaction(2, 0x200, update("2", "b")))
    holding = nights.job.run("tables=[{match: public.t, on_missing_row: hold}]")
    [reason] = held(holding).values()
    assert reason.startswith("on_missing_row is hold, and 1 UPDATE or DELETE met no row; it was in transaction 2, ")
    assert " snapshot --config " in holding.next[0].command
    assert nights.values("t") == [("1", "a")]

    assert nights.job.backfill(OF_T).exit_code == EXIT_QUARANTINE
    [condition] = nights.job.run().conditions
    assert (condition.state, condition.mismatches) == (ConditionKind.DIVERGED, Mismatches(1, 0, 0x200, 2))
    assert nights.values("t") == [("1", "a"), ("2", "b")]


@pytest.mark.soak
def test_changes_of_a_range_are_not_compared_with_the_rows_after_them(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    load(nights, 0x101, [("1", "a"), ("2", "b")])
    nights.night(transaction(2, 0x200, update("2", "bb")), transaction(3, 0x300, delete("2", None)))
    ranged = nights.job.backfill(replace(OF_T, from_lsn=0x200), "tables=[{match: public.t, on_missing_row: hold}]")
    assert ([t.how for t in ranged.tables], ranged.exit_code) == (["rows of the range"], EXIT_DONE)


@pytest.mark.parametrize("ranges", [None, pytest.param((), marks=pytest.mark.soak)], ids=["different", "equal"])
def test_a_repair_mends_a_diverged_table(nights: Nights, ranges: tuple[()] | None) -> None:
    nights.night(transaction(1, 0x100, table(), truncate(), insert("1", "a")))
    contradict(nights)
    assert states(nights.job.run()) == {"t": "diverged"}
    rows = [("1", "a"), ("2", "b")][: 1 if ranges == () else 2]
    begin_repair(nights, 0x101, table(), rows, ranges)
    assert nights.job.run().exit_code == EXIT_DONE
    assert nights.values("t") == rows


@pytest.mark.soak
def test_a_snapshot_and_a_truncate_mend_a_diverged_table(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), truncate(), insert("1", "a")))
    contradict(nights)
    load(nights, 0x101, [("1", "a"), ("2", "b")])
    assert nights.job.run().exit_code == EXIT_DONE
    contradict(nights)
    assert nights.job.run().exit_code == EXIT_QUARANTINE
    assert nights.night(transaction(2, 0x200, truncate(), insert("3", "c"))).exit_code == EXIT_DONE


@pytest.mark.soak
def test_a_table_that_is_no_longer_skipped_lacks_commits(nights: Nights) -> None:
    """Even before a batch finds that."""
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    nights.land(transaction(2, 0x200, insert("2", "b")))
    skipping = "tables=[{match: public.t, skip: true}]"
    for _ in range(2):
        assert nights.job.run(skipping).exit_code == EXIT_DONE
    unskipped = nights.job.run()
    assert ([*held(unskipped)], states(unskipped)) == (["t"], {"t": "held"})
    assert "All tables but public.t (held) are consistent through LSN 0/200." in summary_text(unskipped)
    [step] = unskipped.next
    assert step.command.endswith(" --tables public.t")
    assert nights.job.backfill(OF_T).exit_code == EXIT_DONE
    assert nights.job.run().exit_code == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "b")]

"""The commands that a summary or an error prints resolve the state that it reports."""

from __future__ import annotations

import os
import re
import shlex
import shutil

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_QUARANTINE, EXIT_USAGE
from pgoutput_etl.identifiers import name_of
from pgoutput_etl.ledger.batches import LedgerBatches
from pgoutput_etl.protocol.messages import Delete, Insert, OldTupleKind, TupleData, Type
from tests.spark.jobs.test_snapshot import load
from tests.support.jobs import Nights, dying, held, summary_text
from tests.support.small_archives import Change, Messages, commit_prepared, copydata, insert, table, transaction, update
from tests.support.typed_commands import Outcome, share_session, type_command

pytestmark = pytest.mark.spark

INT4, NUMERIC = 23, 1700


@pytest.fixture(autouse=True)
def _operator(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    share_session(spark, monkeypatch)


def run(command: str) -> int:
    return type_command(command).code


def test_quarantined_bytes_and_the_tables_that_they_hold(nights: Nights) -> None:
    path = nights.land(transaction(1, 100, table(), insert("1", "spoilt")), transaction(2, 200, insert("2", "x")))
    whole = path.read_bytes()
    at = whole.index(b"t\x00\x00\x00\x06spoilt")
    path.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    summary = nights.job.run()
    assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"t"})
    [step] = summary.next

    path.write_bytes(whole)
    assert run(step.command) == EXIT_DONE
    assert nights.values("t") == [("1", "spoilt"), ("2", "x")]
    again = nights.job.run()
    assert (again.exit_code, again.next) == (EXIT_DONE, ())


@pytest.mark.soak
def test_a_table_that_is_gone(nights: Nights) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a")))
    shutil.rmtree(nights.job.path("public", "t"))
    summary = nights.night(transaction(2, 200, insert("2", "b")))
    assert set(held(summary)) == {"t"}
    [step] = summary.next
    assert run(step.command) == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "b")]
    assert nights.job.run().next == ()


@pytest.mark.soak
def test_text_that_is_not_utf8_and_a_type_that_is_no_array(nights: Nights) -> None:
    """Each holds its table alone, and each command mends one."""
    bad, name, mood = TupleData(b"tt", (b"1", b"caf\xe9")), name_of(b"caf\xe9"), Type(None, 16500, "public", "_mood")
    texts: list[Change] = [table(oid=7, name="b"), Insert(None, 7, bad), insert("2", "x", oid=7)]
    moods: list[Change] = [mood, table("id", ("m", 16500), oid=8, name="m"), insert("1", "sad", oid=8)]
    named: list[Change] = [table(oid=9, name=name), insert("1", "n", oid=9)]
    summary = nights.night(transaction(1, 100, table(), *texts, *moods, *named, insert("1", "a")))
    assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"b", "m", name})
    assert nights.values("t") == [("1", "a")]
    assert "client_encoding" in held(summary)["b"]
    assert "client_encoding" in held(summary)[name]
    assert r"public.caf\xe9" in summary_text(summary)
    redrive, of_text, of_type = summary.next

    rules = "tables: [{match: public.b, on_invalid_text: keep}]\ntypes: {public._mood: text}\n"
    nights.job.config.write_text(nights.job.config.read_text() + rules)
    assert run(of_text.command) == EXIT_DONE
    assert run(of_type.command) == EXIT_DONE
    assert nights.values("b") == [("1", None), ("2", "x")]
    kept = [dict(row["_pg_unrepresentable"] or ()) for row in nights.job.rows("public", "b") if row["id"] == "1"]
    assert kept == [{"v": r"\x636166e9"}]
    assert nights.values("m") == [("1", "sad")]

    later: list[Change] = [table(oid=9, name="cafe"), insert("2", "n", oid=9), Delete(None, 7, OldTupleKind.KEY, bad)]
    nights.land(transaction(2, 200, table(oid=7, name="b"), *later, insert("2", "a")))
    assert run(f"pgoutput-etl apply --config {nights.job.config}") == EXIT_QUARANTINE
    assert run(redrive.command) == EXIT_DONE
    assert nights.values("cafe") == [("1", "n"), ("2", "n")]
    assert nights.values("b") == [("2", "x")]
    assert nights.values("t") == [("1", "a"), ("2", "a")]


def one(number: int) -> Messages:
    return transaction(number, 100 * number, *([table()] if number == 1 else []), insert(f"{number}", "a"))


def refuse(error: Outcome, message: str) -> str:
    """The command that a refusal prints."""
    assert error.code == EXIT_FAILED
    assert message in error.error
    [command] = error.next
    return command


@pytest.mark.soak
def test_a_key_whose_new_type_cannot_hold_an_old_value(nights: Nights) -> None:
    """The archive cannot rebuild the table, however often it is tried; the command that is printed can load it."""
    old, new = (table(("id", kind), "v") for kind in (NUMERIC, INT4))
    other = table("id", "v", oid=8, name="other")
    nights.night(transaction(1, 100, old, insert("1.5", "a"), insert("7", "b")), transaction(2, 150, other))
    rows: list[Change] = [insert("9", "c"), other, insert("1", "x", oid=8)]
    summary = nights.night(transaction(3, 200, new, *rows))
    assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"t"})
    [step] = summary.next
    options = shlex.join(nights.job.loaded().options)
    assert re.match("pgoutput-etl snapshot .* --tables public.t --server ", step.command)
    assert run(f"pgoutput-etl backfill --tables public.t {options}") == EXIT_QUARANTINE
    assert run(f"pgoutput-etl backfill --from-quarantine {options}") == EXIT_QUARANTINE

    summary = nights.night(transaction(4, 300, insert("10", "d"), insert("2", "y", oid=8)))
    assert (summary.exit_code, summary.next) == (EXIT_QUARANTINE, (step,))
    assert nights.values("other") == [("1", "x"), ("2", "y")]
    assert nights.values("t") == [("1.5", "a"), ("7", "b")]

    assert load(nights, 300, [("2", "a"), ("7", "b"), ("9", "c"), ("10", "d")]).exit_code == EXIT_DONE
    summary = nights.night(transaction(5, 400, update("2", "e"), insert("3", "z", oid=8)))
    assert (summary.exit_code, summary.next) == (EXIT_DONE, ())
    assert nights.values("t") == [(2, "e"), (7, "b"), (9, "c"), (10, "d")]


def test_a_gap(nights: Nights) -> None:
    for number in (0, 1, 2, 4):
        nights.land(one(number + 1), name=f"00{number}.bin")
    options = shlex.join(nights.job.loaded().options)
    command = refuse(type_command(f"pgoutput-etl apply {options}"), "a file is missing")
    assert command == f"pgoutput-etl inspect {nights.job.landing}"
    shown = type_command(command)
    assert shown.code == EXIT_QUARANTINE
    assert "a file is missing" in str(shown.report)
    assert run(f"pgoutput-etl apply {options} --set source.gaps=accept") == EXIT_DONE
    assert len(nights.values("t")) == 4


def test_a_job_before_the_first_run_and_within_an_interrupted_one(nights: Nights) -> None:
    """Each refusal names apply, after which the job runs."""
    nights.land(one(1))
    options = shlex.join(nights.job.loaded().options)
    backfill = f"pgoutput-etl backfill {options} --tables public.t"
    assert run(refuse(type_command(backfill), "no batch of test has been applied")) == EXIT_DONE
    nights.land(one(2))
    with dying(LedgerBatches, "finish"):
        nights.job.run()
    erasure = nights.job.folder / "erasure.yaml"
    erasure.write_text("requested_by: x\nreference: '1'\ntables: [{table: public.t, keys: [{id: '1'}]}]\n")
    forget = f"pgoutput-etl forget {options} --request {erasure} --execute"
    refused = [refuse(type_command(job), "was begun by a run that died") for job in (backfill, forget)]
    assert len({*refused}) == 1
    assert run(refused[0]) == EXIT_DONE
    assert run(backfill) == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "a")]


@pytest.mark.soak
def test_tables_that_unreadable_bytes_hold_are_redriven_together(nights: Nights) -> None:
    path = nights.land(transaction(1, 100, table(), insert("1", "spoilt")))
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"t\x00\x00\x00\x06spoilt", b"?\x00\x00\x00\x06spoilt"))
    assert nights.job.run().exit_code == EXIT_QUARANTINE
    path.write_bytes(whole)
    options = shlex.join(nights.job.loaded().options)
    command = refuse(type_command(f"pgoutput-etl backfill {options} --tables public.t"), "use --from-quarantine")
    assert run(command) == EXIT_DONE
    assert nights.values("t") == [("1", "spoilt")]
    assert nights.job.run().exit_code == EXIT_DONE


@pytest.mark.soak
def test_a_file_in_which_nothing_can_be_read(nights: Nights) -> None:
    nights.land(one(1), name="a-2026-01-01.copydata")
    hostile = nights.job.landing / "a-2026-01-02.copydata"
    with hostile.open("wb") as file:
        os.truncate(file.fileno(), 100 << 30)
    nights.land(one(2), name="a-2026-01-03.copydata")
    summary = nights.job.run()
    assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"t"})
    [step] = summary.next
    hostile.unlink()
    assert run(step.command) == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "a")]
    assert nights.job.run().next == ()


@pytest.mark.soak
def test_a_file_whose_commits_do_not_fit(nights: Nights) -> None:
    nights.night(one(1))
    nights.land(one(2))
    hostile = nights.land(transaction(99, 10**17, insert("forged", "x")))
    nights.land(one(3))
    nights.land(one(4))  # without it, the third file might be the wrong one
    summary = nights.job.run()
    assert (summary.exit_code, set(held(summary))) == (EXIT_QUARANTINE, {"t"})
    [step] = summary.next
    hostile.unlink()
    assert run(step.command) == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "a"), ("3", "a"), ("4", "a")]
    assert nights.job.run().next == ()


@pytest.mark.soak
def test_a_file_that_stands_in_the_way_of_all(nights: Nights) -> None:
    """The printed command continues without it, and every run says so until the file is gone and the next one lands."""
    nights.night(one(1))
    junk = nights.job.landing / "0005.txt"
    junk.write_text("not an archive " * 100)
    nights.land(one(2))
    options = shlex.join(nights.job.loaded().options)
    command = refuse(type_command(f"pgoutput-etl apply {options}"), "Until this is resolved, no files are applied")
    assert run(command) == EXIT_QUARANTINE
    assert nights.values("t") == [("1", "a"), ("2", "a")]
    again = nights.job.run()
    assert again.exit_code == EXIT_QUARANTINE
    [step] = again.next
    junk.unlink()
    nights.land(one(3))
    assert run(step.command) == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "a"), ("3", "a")]
    assert nights.job.run().next == ()


@pytest.mark.soak
def test_a_file_that_was_read_with_other_bytes(nights: Nights) -> None:
    path = nights.land(one(1))
    nights.land(one(2))
    assert nights.job.run().exit_code == EXIT_DONE
    whole = path.read_bytes()
    path.write_bytes(copydata(one(7)))
    changed = nights.job.run()
    assert changed.exit_code == EXIT_QUARANTINE
    [step] = changed.next
    path.write_bytes(whole)
    nights.land(one(3))
    assert run(step.command) == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "a"), ("3", "a")]
    assert nights.job.run().next == ()


@pytest.mark.soak
def test_a_commit_without_its_prepare(nights: Nights) -> None:
    nights.night(one(1))
    nights.land(commit_prepared(2, 200), name="b.copydata")
    summary = nights.job.run()
    assert summary.exit_code == EXIT_QUARANTINE
    [step] = summary.next
    assert run(step.command) == EXIT_DONE
    nights.land(one(3), name="c.copydata")
    assert nights.job.run().exit_code == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("3", "a")]


@pytest.mark.soak
@pytest.mark.parametrize("rule", ["mode: history", "columns: {v: redact}", "mode: soft_delete"])
def test_settings_that_a_table_was_not_written_with(rule: str, nights: Nights) -> None:
    """The error of apply, of plan, and of a snapshot print the command that builds the table anew."""
    nights.night(one(1))
    nights.land(one(2))
    config = nights.job.config
    config.write_text(f"{config.read_text()}tables: [{{match: public.t, {rule}}}]\n")
    applied, planned = (type_command(f"pgoutput-etl {job} --config {config}") for job in ("apply", "plan"))
    assert (applied.code, planned.code, applied.next) == (EXIT_USAGE, EXIT_USAGE, planned.next)
    [command] = applied.next
    assert run(command) == EXIT_DONE
    again = type_command(f"pgoutput-etl apply --config {config}")
    assert (again.code, again.next) == (EXIT_DONE, [])
    assert sorted(row["id"] for row in nights.job.rows("public", "t")) == ["1", "2"]

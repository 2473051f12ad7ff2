"""The commands that a summary or an error prints resolve the state that it reports."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.cli import main
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_QUARANTINE
from pgoutput_etl.identifiers import name_of
from pgoutput_etl.protocol.messages import Delete, Insert, OldTupleKind, TupleData, Type
from tests.support.jobs import Nights, held, summary_text
from tests.support.small_archives import Change, insert, table, transaction

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _shared_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in the tests' session, and do not end it."""

    @contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("pgoutput_etl.jobs.command.session", session)
    monkeypatch.setattr("pgoutput_etl.jobs.apply.command.session", session)


def run(command: str) -> int:
    program, *arguments = shlex.split(command)
    assert program == "pgoutput-etl"
    return main([*arguments, "--quiet"])


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


def test_a_gap(nights: Nights, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (0, 1, 2, 4):
        describe = [table()] if number == 0 else []
        nights.land(
            transaction(number + 1, 100 * number + 100, *describe, insert(f"{number}", "a")), name=f"00{number}.bin"
        )
    options = shlex.join(nights.job.loaded().options)
    assert run(f"pgoutput-etl apply {options}") == EXIT_FAILED
    error = capsys.readouterr().err
    command = error.partition("  Next: ")[2].strip()
    assert command == f"pgoutput-etl inspect {nights.job.landing}"
    assert run(command) == EXIT_QUARANTINE
    assert "a file is missing" in capsys.readouterr().out
    assert run(f"pgoutput-etl apply {options} --set source.gaps=accept") == EXIT_DONE
    assert len(nights.values("t")) == 4

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
from tests.support.jobs import Nights, held
from tests.support.small_archives import insert, table, transaction

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


def test_a_table_that_is_gone(nights: Nights) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a")))
    shutil.rmtree(nights.job.path("public", "t"))
    summary = nights.night(transaction(2, 200, insert("2", "b")))
    assert set(held(summary)) == {"t"}
    [step] = summary.next
    assert run(step.command) == EXIT_DONE
    assert nights.values("t") == [("1", "a"), ("2", "b")]
    assert nights.job.run().next == ()


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
    assert command == f"pgoutput-etl apply {options} --set source.gaps=accept"
    assert run(command) == EXIT_DONE
    assert len(nights.values("t")) == 4

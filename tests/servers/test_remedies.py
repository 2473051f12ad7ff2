"""Every state of a table that a run reports ends with the printed command, once the printed cause is mended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pyspark.sql import SparkSession

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.identifiers import is_chosen
from tests.support.servers.judged_database import JudgedDatabase, judged_database
from tests.support.servers.postgres import Server
from tests.support.servers.remedies import REDRIVE, REMEDIES, Remedy, rules
from tests.support.typed_commands import Outcome, share_session, type_command

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

ROOT = Path(__file__).parents[2]

COMMON = ("incomplete", "attached", "diverged", "added_column", "unknown_key")
ROUNDS = 2  # of printed commands, after which no table may have a state


@dataclass(frozen=True, slots=True)
class Season:
    """Nights in which all tables come into their states."""

    spark: SparkSession
    database: JudgedDatabase
    remedies: Sequence[Remedy]
    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "shop.yaml"

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.database.server.port}/{self.database.name}"

    def configure(self, *, later: bool = False, mended: bool = False) -> None:
        source = {"name": "test", "landing": str(self.database.landing), "jdbc": self.url}
        tables = rules(self.remedies, later=later, mended=mended)
        document = {"source": source, "target": {"root": str(self.folder / "tables")}, "tables": tables}
        self.config.write_text(yaml.safe_dump(document), encoding="utf-8")

    def apply(self, *statements: str) -> Outcome:
        self.database.server.psql(";".join(statements))
        self.database.land()
        return type_command(f"pgoutput-etl apply --config {self.config}")

    def change_targets(self, changes: Sequence[tuple[Remedy, str]]) -> None:
        """Another program changes Delta tables. changes: SQL, or the word `drop`."""
        for remedy, statement in changes:
            path = self.folder / "tables" / "public" / remedy.name
            if statement == "drop":
                shutil.rmtree(path)
            elif statement:
                self.spark.sql(statement.replace("<t>", f"delta.`{path}`"))

    def nights(self) -> Outcome:
        """The report of the last night, in which every table has its state."""
        self.configure()
        self.apply(*(r.sql(r.first) for r in self.remedies))
        self.change_targets([(r, r.spoil) for r in self.remedies])
        self.configure(later=True)
        self.apply(*(r.sql(r.then) for r in self.remedies))
        self.configure()
        return self.apply(*(r.sql(r.last) for r in self.remedies))

    def mend_causes(self) -> Outcome:
        """What the reports ask for before their commands. The report of the run after it."""
        self.configure(mended=True)
        self.change_targets([(r, r.restore) for r in self.remedies])
        return self.apply(*(r.sql(r.server) for r in self.remedies))


def states(outcome: Outcome) -> dict[str, tuple[str, str]]:
    """Of tables with a state: it, and the reason."""
    held = {c["table"]: (c["state"], c["reason"]) for c in outcome.report["conditions"]}
    swapped = {name.removeprefix("public."): ("swapped", why) for name, why in outcome.report["swaps"].items()}
    return {**held, **swapped}


def command_for(table: str, outcome: Outcome) -> str:
    """The printed command that names the table, in a few words; the redrive, if none does."""
    for words in (command.split() for command in outcome.next):
        if "--tables" in words and is_chosen(f"public.{table}", words[words.index("--tables") + 1].split(",")):
            return f"{words[1]}{' --repair' * ('--repair' in words)}"
    return REDRIVE if any("--from-quarantine" in command for command in outcome.next) else ""


def problems_of_states(remedies: Sequence[Remedy], outcome: Outcome) -> dict[str, str]:
    found, problems = states(outcome), {}
    for remedy in remedies:
        state, reason = found.get(remedy.name, ("none", ""))
        command = command_for(remedy.name, outcome)
        if (state, command) != (remedy.state, remedy.command) or remedy.reason not in reason:
            problems[remedy.name] = f"{state}, {command}: {reason}"
    return problems


def type_all(season: Season, outcome: Outcome) -> Outcome:
    """Types the printed commands until none is left. Those for named tables first: each has to mend its own."""
    for _ in range(ROUNDS):
        for command in sorted(outcome.next, key=lambda command: "--from-quarantine" in command):
            typed = type_command(command)
            assert typed.code in (EXIT_DONE, EXIT_QUARANTINE), f"{command}\n{typed.error}"
            assert "Load a snapshot" not in str(typed.report), command
        before, outcome = outcome, season.apply()
        circles = {name: state for name, state in states(outcome).items() if states(before).get(name) == state}
        assert circles == {}
        if not outcome.next:
            break
    return outcome


def change_settings(season: Season) -> None:
    """Of tables that were written with others, while nothing lands. Each error has one command, and the last one mends
    the rest."""
    document = yaml.safe_load(season.config.read_text(encoding="utf-8"))
    changed = {"public.incomplete": "history", "public.added_column": "soft_delete"}
    others = [rule for rule in document["tables"] if rule["match"] not in changed]
    document["tables"] = [*({"match": name, "mode": mode} for name, mode in changed.items()), *others]
    season.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    for job in ("backfill", "snapshot"):
        [command] = season.apply().next
        assert command.startswith(f"pgoutput-etl {job} ")
        assert type_command(command).code == EXIT_DONE
    assert season.apply().code == EXIT_DONE


def differences(season: Season) -> dict[str, str]:
    """From the server's tables, as verify finds them. A partition that was a table of its own before keeps the rows
    that it had then, and has no remedy."""
    submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[2]"]
    command = [*submit, ROOT / "jobs/verify.py", "--config", season.config, "--jdbc", season.url, "--json", "--quiet"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    verified = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert verified.stdout, verified.stderr
    tables = {table["table"]: table for table in json.loads(verified.stdout)["tables"]}
    return {
        name: table["why_not"] or f"{table['ranges_differing']} ranges differ"
        for name, table in tables.items()
        if name in {remedy.name for remedy in season.remedies}
        if table["why_not"] or table["ranges_differing"]
    }


def assert_mended(
    remedies: Sequence[Remedy], spark: SparkSession, folder: Path, landing: Path, changes: bool = False
) -> None:
    """changes: also changes settings of the mended tables."""
    before = "".join(r.sql(r.before) for r in remedies)
    via_root = "publish_via_partition_root = true"
    with (
        Server(16) as server,
        judged_database(server, "remedies", landing, setup=before, publication=via_root) as database,
    ):
        season = Season(spark, database, remedies, folder)
        assert problems_of_states(remedies, season.nights()) == {}
        last = type_all(season, season.mend_causes())
        # Nothing lands after the snapshots, so the archive has not reached them: apply is what is left.
        left = [command for command in last.next if command.split()[1] != "apply"]
        assert (last.code, states(last), left) == (EXIT_DONE, {}, [])
        assert differences(season) == {}
        if changes:
            change_settings(season)


@pytest.fixture(autouse=True)
def _operator(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    share_session(spark, monkeypatch)
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGPASSWORD", "SECRET")


@pytest.mark.soak
def test_the_most_common_states(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    assert_mended([r for r in REMEDIES if r.name in COMMON], spark, tmp_path, landing)


@pytest.mark.soak
def test_every_state(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    assert_mended(REMEDIES, spark, tmp_path, landing, changes=True)

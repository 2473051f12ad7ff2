"""The DAGs under conf/, loaded and run by Airflow with the summary of a real run. Needs only Airflow and pytest."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SUMMARY = Path(os.environ["NEIGHBORS"]) / "summary.json"
EXAMPLES = (ROOT / "conf" / "neighbors" / "airflow_assets.py", ROOT / "conf" / "clusters" / "airflow_dag.py")
_LIMIT = 180  # seconds; `airflow dags test` waits forever for a task that is to be retried


@dataclass(frozen=True, slots=True)
class Airflow:
    home: Path

    def run(self, *command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """code: the exit code of spark-submit."""
        settings = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "CODE": str(code),
        }
        environment = {**os.environ, **settings}
        python = [sys.executable, *command]
        return subprocess.run(python, env=environment, capture_output=True, text=True, check=False, timeout=_LIMIT)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.home / "airflow.db") as database:
            return database.execute(sql).fetchall()


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """Airflow with its own database, and the examples in its folder. spark-submit prints the demo's summary."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    submit = home / "submit"
    submit.write_text(f"#!/bin/sh\necho progress >&2\ncat {SUMMARY}\nexit ${{CODE:-0}}\n")
    submit.chmod(0o755)
    for example in EXAMPLES:
        text = re.sub("^SUBMIT = .*$", f"SUBMIT = [{str(submit)!r}]", example.read_text(), flags=re.MULTILINE)
        text = re.sub("^FOLDER = .*$", f"FOLDER = {str(home)!r}", text, flags=re.MULTILINE)
        (home / "dags" / example.name).write_text(text)
    airflow = Airflow(home)
    done = airflow.run("-m", "airflow", "db", "migrate")
    assert done.returncode == 0, done.stderr
    return airflow


def events(airflow: Airflow) -> dict[str, dict[str, Any]]:
    """By URI, the extra information of the last event of each asset."""
    rows = airflow.query("select a.uri, e.extra from asset_event e join asset a on a.id = e.asset_id order by e.id")
    return {uri: json.loads(extra) for uri, extra in rows}


def states(airflow: Airflow, dag: str) -> dict[str, str]:
    return dict(airflow.query(f"select task_id, state from task_instance where dag_id = '{dag}' order by start_date"))


def test_airflow_accepts_the_dags(airflow: Airflow) -> None:
    code = (
        "import json, sys; from airflow.dag_processing.dagbag import DagBag; bag = DagBag(sys.argv[1]); "
        "dags = {name: sorted(task.task_id for task in dag.tasks) for name, dag in bag.dags.items()}; "
        "print(json.dumps([bag.import_errors, dags]))"
    )
    done = airflow.run("-c", code, str(airflow.home / "dags"))
    assert done.returncode == 0, done.stderr
    errors, dags = json.loads(done.stdout.splitlines()[-1])
    assert errors == {}
    assert dags == {
        "pgoutput_etl_shop": ["apply", "maintain", "plan", "quarantine", "verify"],
        "pgoutput_etl_shop_assets": ["apply", "quarantine"],
        "orders_report": ["report"],
    }


def test_each_written_table_is_an_asset_event(airflow: Airflow) -> None:
    done = airflow.run("-m", "airflow", "dags", "test", "pgoutput_etl_shop_assets")
    assert done.returncode == 0, done.stderr
    assert states(airflow, "pgoutput_etl_shop_assets") == {"apply": "success", "quarantine": "success"}
    summary = json.loads(SUMMARY.read_text())
    expected = {
        f"x-pgoutput-etl://shop/public/{table['table']}": {
            **{name: table[name] for name in ("rows", "inserted", "updated", "deleted", "path")},
            "lsn": summary["lsn"],
            "delta_version": table["version"],
        }
        for table in summary["tables"]
    }
    assert len(expected) == 5
    assert events(airflow) == expected
    references = "select r.dag_id, a.uri from dag_schedule_asset_reference r join asset a on a.id = r.asset_id"
    assert airflow.query(references) == [("orders_report", "x-pgoutput-etl://shop/public/orders")]


def test_quarantine_fails_a_task_of_its_own(airflow: Airflow) -> None:
    before = airflow.query("select count(*) from asset_event")
    airflow.run("-m", "airflow", "dags", "test", "pgoutput_etl_shop_assets", code=3)
    assert states(airflow, "pgoutput_etl_shop_assets") == {"apply": "success", "quarantine": "failed"}
    assert airflow.query("select count(*) from asset_event") > before


@pytest.mark.parametrize(("code", "error"), [(1, "RuntimeError"), (2, "AirflowFailException")])
def test_errors_are_retried_except_wrong_configurations(airflow: Airflow, code: int, error: str) -> None:
    call = "import sys; sys.path.insert(0, sys.argv[1]); import airflow_assets; airflow_assets.run_apply()"
    done = airflow.run("-c", call, str(airflow.home / "dags"), code=code)
    assert done.returncode == 1
    assert f"{error}: apply" in done.stderr

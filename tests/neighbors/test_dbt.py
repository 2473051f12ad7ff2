"""The generated sources.yml, read by dbt: parsed, queried through DuckDB, checked for freshness, named for Spark."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from pgoutput_etl.cli import main
from tools.neighbors import CONFIGURATION

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ["NEIGHBORS"])
DEMO = FOLDER / "demo"
TABLES = ("acct", "blob_", "ev", "line", "uniq")


@dataclass(frozen=True, slots=True)
class Project:
    """A dbt project with DuckDB."""

    folder: Path

    @property
    def sources(self) -> Path:
        return self.folder / "models" / "sources.yml"

    def generate(self, *options: str) -> None:
        assert main(["status", *CONFIGURATION, "--dbt", str(self.sources), *options]) in (0, 3)

    def dbt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DBT_PROFILES_DIR": str(self.folder), "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
        command = [str(FOLDER / "dbt" / "bin" / "dbt"), "--no-use-colors", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "target" / name).read_text())
        return found


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(ROOT)
    project = Project(tmp_path)
    project.sources.parent.mkdir()
    [extension] = (FOLDER / "dbt").rglob("delta.duckdb_extension")
    duckdb = {
        "type": "duckdb",
        "path": ":memory:",
        "config_options": {"allow_unsigned_extensions": True, "extension_directory": str(tmp_path / "extensions")},
        "extensions": [str(extension)],
    }
    profiles = {"neighbors": {"target": "dev", "outputs": {"dev": duckdb}}}
    (tmp_path / "profiles.yml").write_text(yaml.safe_dump(profiles))
    (tmp_path / "dbt_project.yml").write_text("{name: neighbors, version: '1.0', profile: neighbors}")
    return project


def test_dbt_parses_the_sources_without_a_warning(project: Project) -> None:
    project.generate("--max-age", "36h")
    done = project.dbt("parse", "--show-all-deprecations", "--warn-error")
    assert done.returncode == 0, done.stdout
    sources = project.result("manifest.json")["sources"]
    assert sorted(source["name"] for source in sources.values()) == sorted(TABLES)
    acct = sources["source.neighbors.demo_public.acct"]
    assert acct["loaded_at_field"] == "_pg_commit_ts"
    assert acct["freshness"]["error_after"] == {"count": 36, "period": "hour"}
    assert acct["external"]["location"] == str(DEMO / "public" / "acct")
    assert acct["meta"]["pgoutput_etl"]["delta_version"] == DeltaTable(DEMO / "public" / "acct").version()
    delta = [field.name for field in DeltaTable(DEMO / "public" / "acct").schema().fields]
    assert list(acct["columns"]) == delta
    assert acct["columns"]["bal"]["data_type"] == "decimal(12,2)"


def test_models_read_the_delta_tables(project: Project) -> None:
    project.generate()
    selects = [
        f"select '{name}' as name, count(*) as n from {{{{ source('demo_public', '{name}') }}}}" for name in TABLES
    ]
    (project.sources.parent / "counts.sql").write_text("\nunion all\n".join(selects))
    done = project.dbt("--quiet", "show", "--select", "counts", "--output", "json")
    assert done.returncode == 0, done.stdout
    counts = {row["name"]: row["n"] for row in json.loads(done.stdout)["show"]}
    assert counts == {name: DeltaTable(DEMO / "public" / name).count() for name in TABLES}


@pytest.mark.parametrize(("age", "status"), [("1m", "error"), ("9000d", "pass")])
def test_freshness_is_judged_by_the_newest_commit(project: Project, age: str, status: str) -> None:
    project.generate("--max-age", age)
    done = project.dbt("source", "freshness")
    results = project.result("sources.json")["results"]
    assert {result["status"] for result in results} == {status}, done.stdout
    assert len(results) == len(TABLES)


def test_spark_reads_the_tables_by_their_paths(project: Project) -> None:
    project.generate()
    [source] = yaml.safe_load(project.sources.read_text())["sources"]
    code = (
        "import json, sys; from dbt.adapters.spark.relation import SparkRelation; s = json.loads(sys.argv[1]); "
        "name = {'schema': s['schema'], 'identifier': s['tables'][0]['identifier']}; "
        "print(SparkRelation.create(**name, quote_policy=s['quoting']).render())"
    )
    python = FOLDER / "dbt" / "bin" / "python"
    done = subprocess.run([python, "-c", code, json.dumps(source)], capture_output=True, text=True, check=True)
    assert done.stdout == f"`delta`.`{DEMO}/public/acct`\n"

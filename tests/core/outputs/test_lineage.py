"""A run as OpenLineage's events: names of datasets, facets, failures, and an unusable client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.config.settings import Metrics, SourceDatabase
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.load.summary import ChangedTables, TableSummary
from pgoutput_etl.outputs.openlineage import dataset_name
from pgoutput_etl.outputs.publish import RunPublisher
from pgoutput_etl.places import Place
from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.targets.column_descriptions import TargetColumn, target_columns
from pgoutput_etl.types import column_type
from pgoutput_etl.work.files.recorder import RunRecorder, written_tables
from pgoutput_etl.work.files.report import RunReport, RunSummary
from tests.support.lineage import events_of, send_to_file

SERVER = "postgres://db.example:5432"
METRICS = Metrics(openlineage=SourceDatabase(SERVER, "shop"))
INT4, TEXT, NUMERIC_10_2 = 23, 25, (10 << 16 | 2) + 4
COLUMNS = target_columns(
    [
        TableColumn("id", column_type(INT4, -1)),
        TableColumn("email", column_type(TEXT, -1)),
        TableColumn("price", column_type(1700, NUMERIC_10_2)),
        TableColumn("old", column_type(TEXT, -1), retired=True),
    ],
    Mode.SOFT_DELETE,
    {"email": "hash: sha256, salt 0123456789abcdef", "note": "drop"},
    {"price": "cost", "id": None},
)
TABLE = TableSummary("public", "t", "/lake/public/t", 3, rows=10, inserted=7, updated=2, deleted=1)
HELD = TableSummary("public", "o", "/lake/public/o", 0, held="why")


def check(metrics: Metrics) -> None:
    RunPublisher.of("shop", metrics).check()


def batch(number: int, *tables: TableSummary, **columns: tuple[TargetColumn, ...]) -> RunSummary:
    by_name = {f"public.{name}": columns for name, columns in columns.items()}
    return RunSummary("shop", number, 1, 100, 0x100, tables=tables, columns=by_name)


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a copy of the environment, because the client adds variables of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("OPENLINEAGE")}
    monkeypatch.setattr(os, "environ", environ)
    path = tmp_path / "events.jsonl"
    send_to_file(monkeypatch, path)
    return path


def facet(dataset: dict[str, Any], name: str) -> dict[str, Any]:
    facets: dict[str, Any] = {**dataset["facets"], **dataset["outputFacets"]}
    return {key: value for key, value in facets[name].items() if not key.startswith("_")}


def test_a_run_is_one_openlineage_run(sent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "nightly")
    check(METRICS)
    with RunRecorder("shop", METRICS) as recorder:
        assert [event["eventType"] for event in events_of(sent)] == ["START"]
        again = replace(TABLE, version=4, inserted=1, updated=0)
        recorder.done([batch(1, TABLE, t=COLUMNS[:1]), batch(2, HELD, again, t=COLUMNS)])
    start, complete = events_of(sent)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert start["job"] == complete["job"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("nightly", "pgoutput_etl.shop.apply")
    assert start["eventTime"] < complete["eventTime"]
    assert (start["inputs"], start["outputs"]) == ([], [])
    assert [(dataset["namespace"], dataset["name"]) for dataset in complete["inputs"]] == [(SERVER, "shop.public.t")]
    [output] = complete["outputs"]
    assert (output["namespace"], output["name"]) == ("file", "/lake/public/t")
    assert facet(output, "outputStatistics") == {"rowCount": 10}
    assert facet(output, "version") == {"datasetVersion": "4"}


def test_columns_have_types_and_sources(sent: Path) -> None:
    RunRecorder("shop", METRICS).done([batch(1, TABLE, t=COLUMNS)])
    [output] = events_of(sent)[-1]["outputs"]
    fields = {field["name"]: field for field in facet(output, "schema")["fields"]}
    assert {name: field["type"] for name, field in fields.items()} == {
        "id": "int",
        "email": "string",
        "price": "decimal(10,2)",
        "old": "string",
        "_pg_commit_lsn": "bigint",
        "_pg_commit_ts": "timestamp",
        "_pg_xid": "bigint",
        "_pg_unrepresentable": "map<string,string>",
        "_pg_deleted": "boolean",
    }
    assert [field["ordinal_position"] for field in fields.values()] == list(range(1, 10))
    assert fields["price"]["description"] == "PostgreSQL numeric(10,2)"
    lineage = facet(output, "columnLineage")["fields"]
    assert {name: [source["field"] for source in column["inputFields"]] for name, column in lineage.items()} == {
        "id": ["id"],
        "email": ["email"],
        "price": ["price", "cost"],
        "old": ["old"],
    }
    sources = {(source["namespace"], source["name"]) for column in lineage.values() for source in column["inputFields"]}
    assert sources == {(SERVER, "shop.public.t")}
    [hashed], [plain] = (lineage[name]["inputFields"][0]["transformations"] for name in ("email", "id"))
    assert (hashed["subtype"], hashed["masking"], hashed["description"]) == ("TRANSFORMATION", True, "hash")
    assert (plain["subtype"], plain["masking"]) == ("IDENTITY", False)
    assert "0123456789abcdef" not in sent.read_text(), "the salt's fingerprint"


def test_a_failed_run_sends_the_class_of_its_error_and_no_text(sent: Path) -> None:
    with pytest.raises(RunError), RunRecorder("shop", METRICS):
        raise RunError("secret")
    start, fail = events_of(sent)
    assert (start["eventType"], fail["eventType"]) == ("START", "FAIL")
    assert fail["run"]["facets"]["errorMessage"]["message"] == "RunError"
    assert "secret" not in sent.read_text()


def test_another_job_sends_the_tables_that_it_changed(sent: Path) -> None:
    """Without their columns, which are those that apply has sent."""
    with RunRecorder("shop", METRICS, job="backfill") as recorder:
        recorder.job_done(3, ChangedTables((TABLE, HELD)))
    with RunRecorder("shop", METRICS, job="verify") as recorder:
        recorder.job_done(75)
    _, complete, _, waits = events_of(sent)
    assert (complete["job"]["name"], complete["eventType"]) == ("pgoutput_etl.shop.backfill", "COMPLETE")
    assert [dataset["name"] for dataset in complete["inputs"]] == ["shop.public.t"]
    [output] = complete["outputs"]
    assert (set(output["facets"]), facet(output, "outputStatistics")) == ({"version"}, {"rowCount": 9})
    assert (waits["job"]["name"], waits["eventType"]) == ("pgoutput_etl.shop.verify", "ABORT")


def test_an_interrupted_run_is_aborted(sent: Path) -> None:
    with pytest.raises(KeyboardInterrupt), RunRecorder("shop", METRICS):
        raise KeyboardInterrupt
    assert [event["eventType"] for event in events_of(sent)] == ["START", "ABORT"]


def test_a_run_that_finds_nothing_has_no_datasets(sent: Path) -> None:
    with RunRecorder("shop", METRICS) as recorder:
        recorder.done([RunSummary("shop", 7, 0, 0, 0x100, tables=(HELD,))])
    assert [(event["eventType"], event["inputs"]) for event in events_of(sent)] == [("START", []), ("COMPLETE", [])]


def test_a_look_that_finds_nothing_sends_nothing(sent: Path) -> None:
    with RunRecorder("shop", METRICS, is_look=True) as recorder:
        recorder.done([RunSummary("shop", 7, 0, 0, 0x100)])
    with pytest.raises(KeyboardInterrupt), RunRecorder("shop", METRICS, is_look=True):
        raise KeyboardInterrupt
    assert events_of(sent) == []


def test_a_look_that_finds_files_is_a_run_and_so_is_one_that_fails(sent: Path) -> None:
    with RunRecorder("shop", METRICS, is_look=True) as recorder:
        recorder.done([batch(8, TABLE, t=COLUMNS)])
    with pytest.raises(RunError), RunRecorder("shop", METRICS, is_look=True):
        raise RunError("x")
    events = events_of(sent)
    assert [event["eventType"] for event in events] == ["START", "COMPLETE", "START", "FAIL"]
    assert events[0]["run"]["runId"] != events[2]["run"]["runId"]
    assert events[0]["eventTime"] < events[1]["eventTime"]


def test_columns_are_not_in_the_json_summary() -> None:
    summary = batch(1, TABLE, t=COLUMNS)
    report = json.loads(RunReport([summary]).to_json())
    assert "columns" not in report
    assert "columns" not in report["batches"][0]
    assert report["tables"][0]["table"] == "t"
    assert [table.table for table in written_tables([summary])] == ["t"]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/lake/public/t", ("file", "/lake/public/t")),
        ("file:/lake/public/t", ("file", "/lake/public/t")),
        ("file:///lake/a b/t%20", ("file", "/lake/a b/t%20")),
        ("s3a://lake/warehouse/public/t", ("s3://lake", "warehouse/public/t")),
        ("s3://lake/public/t", ("s3://lake", "public/t")),
        ("gs://lake/public/t", ("gs://lake", "public/t")),
        ("abfss://c@a.dfs.core.windows.net/public/t", ("abfss://c@a.dfs.core.windows.net", "/public/t")),
        ("hdfs://name:8020/lake/t", ("hdfs://name:8020", "/lake/t")),
        ("dbfs:/lake/t", ("dbfs", "/lake/t")),
        ("`main`.`shop_public`.`t`", ("main", "main.shop_public.t")),
    ],
)
def test_names_follow_the_specification(place: str, name: tuple[str, str]) -> None:
    assert dataset_name(Place(place)) == name


def test_a_relative_path_is_named_from_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dataset_name(Place("./warehouse/public/t")) == ("file", f"{tmp_path}/warehouse/public/t")


def test_names_agree_with_the_clients_own() -> None:
    from openlineage.client.naming.dataset import S3, LocalFileSystem, Postgres

    postgres = Postgres("db.example", "5432", "shop", "public", "t")
    assert (postgres.get_namespace(), postgres.get_name()) == (SERVER, "shop.public.t")
    local, bucket = LocalFileSystem("/lake/t"), S3("lake", "public/t")
    assert dataset_name(Place("/lake/t")) == (local.get_namespace(), local.get_name())
    assert dataset_name(Place("s3a://lake/public/t")) == (bucket.get_namespace(), bucket.get_name())


def test_a_failure_to_send_is_a_warning(
    sent: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(sent.parent / "gone" / "events.jsonl"))
    with RunRecorder("shop", METRICS) as recorder:
        recorder.done([batch(1, TABLE, t=COLUMNS)])
    with pytest.raises(RunError, match="the run's own error"), RunRecorder("shop", METRICS):
        raise RunError("the run's own error")
    assert capsys.readouterr().err.count("metrics.openlineage: the run could not be published: ") == 4


class Receiver(BaseHTTPRequestHandler):
    """Keeps the events that are posted to it."""

    posted: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.posted.append((self.path, event))
        self.send_response(201)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.mark.usefixtures("sent")
def test_events_are_posted_to_the_url(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE__")]:
        monkeypatch.delenv(name)
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        Thread(target=server.serve_forever).start()
        monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{server.server_port}")
        check(METRICS)
        with RunRecorder("shop", METRICS) as recorder:
            recorder.done([batch(1, TABLE, t=COLUMNS)])
        server.shutdown()
    assert [(path, event["eventType"]) for path, event in Receiver.posted] == [
        ("/api/v1/lineage", "START"),
        ("/api/v1/lineage", "COMPLETE"),
    ]


@pytest.mark.usefixtures("sent")
def test_an_unusable_client_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "pigeon")
    with pytest.raises(ConfigError, match=r"^metrics\.openlineage: the client can't use its configuration: "):
        check(METRICS)
    monkeypatch.delenv("OPENLINEAGE__TRANSPORT__TYPE")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^metrics\.openlineage: no transport is configured: set OPENLINEAGE_URL"):
        check(METRICS)
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    check(METRICS)
    monkeypatch.delenv("OPENLINEAGE_DISABLED")
    monkeypatch.setenv("OPENLINEAGE_URL", "http://localhost:5000")
    check(METRICS)


def test_a_missing_client_is_refused_with_the_install_command(tmp_path: Path) -> None:
    blocked = (
        "import importlib.util as u\nu.find_spec = lambda name: None\n"
        "from pgoutput_etl.config.settings import Metrics, SourceDatabase\n"
        "from pgoutput_etl.outputs.publish import RunPublisher\n"
        "RunPublisher.of('shop', Metrics(openlineage=SourceDatabase('postgres://db:5432', 'shop'))).check()"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "ConfigError: metrics.openlineage: OpenLineage's client is not installed: pip install" in done.stderr


def test_the_client_is_imported_only_if_it_is_used(tmp_path: Path) -> None:
    assert find_spec("openlineage") is not None
    code = "import sys, pgoutput_etl.outputs.publish; print(any(m.startswith('openlineage') for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "False\n"

"""Several sources of one file, applied in one session: each has its tables, its ledger, and its exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.cli import main
from tests.support.small_archives import copydata, insert, table, transaction

SOURCES = ("a", "gone", "c")


def write_config(folder: Path) -> str:
    """Of three sources, of which one has no landing folder. Rules merge, and give the tables other names."""
    listed = "".join(f"  - {{name: {name}, landing: {folder / 'in' / name}, snapshot: accept}}\n" for name in SOURCES)
    path = folder / "all.yaml"
    path.write_text(
        f"sources:\n{listed}target: {{root: '{folder}/out/{{source}}'}}\n"
        f"metrics: {{json: '{folder}/{{source}}.jsonl', prometheus: '{folder}/{{source}}.prom'}}\n"
        "rules: merge\ninclude: ['public.*']\ndefaults: {mode: soft_delete}\n"
        "tables: [{match: 'public.*', rename: 'dwh.{source}_{table}'}, {match: public.u, mode: mirror}]\n",
        encoding="utf-8",
    )
    return str(path)


def land(folder: Path, name: str, number: int, *values: str) -> None:
    rows = [insert(value, "x") for value in values]
    other = table(oid=2, name="u"), insert(values[0], "y", oid=2)
    content = copydata(transaction(number, 0x100 * number, table(), *rows, *other), 0x1000000 * number)
    (folder / "in" / name).mkdir(parents=True, exist_ok=True)
    (folder / "in" / name / f"{number}.bin").write_bytes(content)


@pytest.mark.spark
def test_all_sources_of_a_file_in_one_session(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions: list[str] = []

    def start_session(name: str, *_: object) -> SparkSession:
        sessions.append(name)
        return spark

    monkeypatch.setattr("pgoutput_etl.spark.session.start_session", start_session)
    monkeypatch.setattr("pgoutput_etl.spark.session.end_session", lambda *_: sessions.append("end"))

    def run(job: str, *options: str) -> tuple[int, dict[str, Any]]:
        sessions.clear()
        code = main([job, "--config", config, "--json", "--quiet", *options])
        return code, json.loads(capsys.readouterr().out)

    config = write_config(tmp_path)
    land(tmp_path, "a", 1, "1", "2")
    land(tmp_path, "c", 1, "3")

    code, report = run("apply")
    assert (code, report["exit_code"]) == (2, 2)
    assert sessions == ["pgoutput_etl apply a", "end"]
    assert [(s["source"], s["exit_code"]) for s in report["sources"]] == [("a", 0), ("gone", 2), ("c", 0)]
    assert report["sources"][1]["report"] is None

    def rows(source: str, name: str) -> list[str]:
        read = spark.read.format("delta").load(f"{tmp_path}/out/{source}/dwh/{source}_{name}")
        assert ("_pg_deleted" in read.columns) == (name == "t")
        return sorted(row["id"] for row in read.collect())

    assert [rows(source, "t") for source in ("a", "c")] == [["1", "2"], ["3"]]
    assert [rows(source, "u") for source in ("a", "c")] == [["1"], ["3"]]
    for source in ("a", "c"):
        assert (tmp_path / "out" / source / "_pgoutput_etl" / "batches").is_dir()

    (tmp_path / "in" / "gone").mkdir()
    land(tmp_path, "a", 2, "4")
    land(tmp_path, "c", 2, "5")
    assert run("apply", "--source", "a")[1]["batch"] == 2
    assert sessions == ["pgoutput_etl apply a", "end"]
    code, report = run("plan")
    assert (code, [len(s["report"]["files"]) for s in report["sources"]]) == (0, [0, 0, 1])
    code, report = run("status")
    assert (code, [s["report"]["batch"] for s in report["sources"]]) == (0, [2, None, 1])
    assert sessions == []
    code, report = run("maintain", "--only", "checkpoint")
    assert (code, [s["exit_code"] for s in report["sources"]]) == (1, [0, 1, 0])  # one has applied nothing yet
    assert sessions == ["pgoutput_etl maintain a", "end"]

    def published(source: str) -> list[tuple[str, int, int]]:
        lines = (tmp_path / f"{source}.jsonl").read_text().splitlines()
        return [(run["job"], run["exit_code"], run["rows"].get("inserted", 0)) for run in map(json.loads, lines)]

    assert run("maintain", "--only", "checkpoint", "--execute")[0] == 1
    assert run("backfill", "--source", "a", "--tables", "public.t")[0] == 0
    assert published("a") == [("apply", 0, 3), ("apply", 0, 2), ("maintain", 0, 0), ("backfill", 0, 3)]
    assert published("gone") == [("apply", 2, 0), ("maintain", 1, 0)]
    files = {path.name for path in tmp_path.glob("a*.prom")}
    assert files == {"a.prom", "a.maintain.prom", "a.backfill.prom"}
    assert 'pgoutput_etl_run_batches{source="a"} 1.0' in (tmp_path / "a.prom").read_text()

    @contextmanager
    def stop_after_c(_: object) -> Iterator[Callable[[], bool]]:
        yield lambda: published("c").count(("apply", 0, 2)) == 2

    monkeypatch.setattr("pgoutput_etl.work.files.follow.stop_signal", stop_after_c)
    follow = ["apply", "--config", config, "--quiet", "--follow", "1s"]
    assert main([*follow, "--json"]) == 0
    batch, ended = map(json.loads, capsys.readouterr().out.splitlines())
    assert (batch["source"], batch["batch"]) == ("c", 2)
    assert (ended["stopped"], ended["exit_code"]) == (True, 0)
    assert [(s["source"], s["report"]["batches"]) for s in ended["sources"]] == [("a", 0), ("gone", 0), ("c", 1)]
    assert rows("c", "t") == ["3", "5"]

    (tmp_path / "in" / "gone").rmdir()
    land(tmp_path, "c", 3, "6")
    monkeypatch.setattr("pgoutput_etl.work.files.follow.stop_signal", lambda _: nullcontext(lambda: False))
    assert main(follow) == 2, "an error in one source ends the process, after the others' polls"
    printed = capsys.readouterr()
    assert "source gone: this error ends the process" in printed.err
    assert "c: Batch 3: 1 file, 1 transaction" in printed.out
    assert "source c\nStopped after 1 batch." in printed.out

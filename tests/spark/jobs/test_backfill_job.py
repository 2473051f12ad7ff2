"""The command line of jobs/backfill.py: refusals, output, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgoutput_etl.jobs.backfill import COMMAND
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.support.command_line import refusal
from tests.support.small_archives import copydata, insert, table, transaction, update

JOB = ROOT / "jobs" / "backfill.py"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tables", "a.b", "--from-lsn", "1"], "not an LSN: '1'"),
        (["--tables", "a.b", "--to-time", "yesterday"], "not a time: 'yesterday'"),
        ([], "expected one of --tables, --from-quarantine"),
        (["--tables", "a.b", "--out", "x", "--from-lsn", "0/1"], "PGO-1200: ConfigError: --out: "),
        (["--tables", "a.b", "--from-time", "2026-03-01", "--from-lsn", "0/1"], "expected one of them"),
        (["--tables", "a.b", "--at", "0/1"], "PGO-1200: ConfigError: --at: expected with --out"),
        (
            ["--tables", "a.b", "--out", "x", "--at", "0/1", "--to-lsn", "0/1"],
            "PGO-1200: ConfigError: --at: expected with --out",
        ),
        (["--from-quarantine", "--to-lsn", "0/1"], "PGO-1200: ConfigError: --from-quarantine: "),
        (["--tables", "a.b", "--since-version", "1", "--to-lsn", "0/1"], "PGO-1200: ConfigError: --since-version: "),
        (["--tabl", "a.b"], "No such option '--tabl'"),
    ],
)
def test_invalid_options_are_refused_before_spark_starts(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(COMMAND, arguments, tmp_path, capsys)


@pytest.mark.spark
@pytest.mark.soak
def test_the_summary_as_text_and_as_json(tmp_path: Path, landing: Path) -> None:
    first = transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b"))
    (landing / "0.bin").write_bytes(copydata([*first, *transaction(2, 0x200, update("1", "aa"))]))
    config = tmp_path / "job.yaml"
    source = f"{{name: shop, landing: '{landing}', snapshot: accept}}"
    config.write_text(f"source: {source}\ntarget: {{root: '{tmp_path / 'out'}'}}\n")
    submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[1]"]
    assert run(*submit, ROOT / "jobs/apply.py", "--config", config).returncode == 0

    done = run(*submit, JOB, "--config", config, "--tables", "public.*", "--from-time", "2000-01-01T01:00+01:00")
    assert done.returncode == 0, done.stderr
    assert "rows of the range" in done.stdout
    assert "Read: 1 of 1 file, " in done.stdout
    assert "As of LSN 0/200." in done.stdout

    done = run(*submit, JOB, "--config", config, "--tables", "public.t", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert (summary["lsn"], summary["exit_code"], summary["batch"], summary["bytes_read"]) == ("0/200", 0, 3, 231)
    [backfilled] = summary["tables"]
    assert (backfilled["how"], backfilled["table"]["rows"], backfilled["files"]) == ("whole", 2, 1)

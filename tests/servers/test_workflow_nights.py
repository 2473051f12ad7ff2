"""The jobs of each shipped workflow, in its order, for three nights on a server that is in use: all green."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.cli import command
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_TRY_LATER
from pgoutput_etl.work.files.pipeline import apply
from pgoutput_etl.work.files.report import RunReport
from pgoutput_etl.work.upkeep.run import maintain
from tests.servers.test_verify_in_use import Archive, archive_of, writers

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

CONF = Path(__file__).parents[2] / "conf"

Command = tuple[str, ...]  # a job and its options

RUN: Mapping[str, Callable[..., Any]] = {
    "apply": lambda spark, config, _: RunReport(apply(spark, config)),
    "verify": verify,
    "maintain": maintain,
}


def airflow() -> list[Command]:
    tree = ast.parse((CONF / "clusters" / "airflow_dag.py").read_text())
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    runs = sorted((call for call in calls if getattr(call.func, "id", "") == "run"), key=lambda call: call.lineno)
    return [tuple(_word(word, constants) for word in call.args) for call in runs]


def _word(word: ast.expr, constants: Mapping[str, Any]) -> str:
    return str(constants[word.id] if isinstance(word, ast.Name) else ast.literal_eval(word))


def databricks(name: str) -> list[Command]:
    resources = yaml.safe_load((CONF / "databricks" / "resources" / f"{name}.yml").read_text())["resources"]
    [job] = resources["jobs"].values()
    tasks = [task["spark_python_task"]["parameters"] for task in job["tasks"] if "spark_python_task" in task]
    return [tuple(words[words.index(job) :]) for words in tasks for job in RUN if job in words]


def systemd() -> list[Command]:
    return [_submitted((CONF / "clusters" / "pgoutput-etl@.service").read_text().split())]


def kubernetes() -> list[Command]:
    [job] = [part for part in yaml.safe_load_all((CONF / "clusters" / "kubernetes.yaml").read_text()) if _is_job(part)]
    return [_submitted(job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"])]


def _is_job(resource: Mapping[str, Any]) -> bool:
    return bool(resource["kind"] == "CronJob")


def _submitted(words: list[str]) -> Command:
    at = next(n for n, word in enumerate(words) if re.fullmatch(r"jobs/\w+\.py", word))
    return (Path(words[at]).stem, *words[at + 1 : at + 3])


WORKFLOWS = {
    "airflow": airflow(),
    "databricks": databricks("nightly"),
    "databricks serverless": databricks("nightly_serverless"),
    "kubernetes": kubernetes(),
    "systemd": systemd(),
}


def exit_code(words: Command, archive: Archive) -> int:
    """Runs a job with its options, against this server and configuration."""
    job, *options = words
    options += [] if "--config" in options else ["--config", ""]
    values = {"--server": archive.url, "--config": str(archive.job.config), "--keep-days": "7"}
    given = [values.get(before, word) for before, word in zip(["", *options], options, strict=False)]
    _, request, *_ = command(job).parser().parse(job, given)
    code: int = RUN[job](archive.job.spark, archive.job.loaded(), request).exit_code
    return code


def test_every_workflow_is_read() -> None:
    jobs = {name: [job for job, *_ in commands] for name, commands in WORKFLOWS.items()}
    whole, alone = ["apply", "verify", "maintain"], ["apply"]
    assert jobs == {
        "airflow": whole,
        "databricks": whole,
        "databricks serverless": whole,
        "kubernetes": alone,
        "systemd": alone,
    }
    assert all("--server" in verify for _, verify, _ in (WORKFLOWS[name] for name in jobs if jobs[name] == whole))


@pytest.mark.soak
@pytest.mark.parametrize("name", ["airflow", "databricks"])
def test_three_nights_on_a_server_in_use(spark: SparkSession, tmp_path: Path, landing: Path, name: str) -> None:
    """verify and maintain run beside each other, so either may be the first."""
    first, *others = WORKFLOWS[name]
    with archive_of(18, spark, tmp_path, landing) as archive, writers(archive.server, pause=0.05):
        for night in range(3):
            archive.receive()
            codes = {words[0]: exit_code(words, archive) for words in (first, *(others if night % 2 else others[::-1]))}
            asked_for_the_first_time = night == 0
            assert codes == {
                "apply": EXIT_DONE,
                "verify": EXIT_TRY_LATER if asked_for_the_first_time else EXIT_DONE,
                "maintain": EXIT_DONE,
            }

"""Reads Spark's event log: the jobs of a night, and the metrics of their tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PYTHON = ("data sent to Python workers", "data returned from Python workers")
_PYTHON_BYTES = "Python Bytes"


@dataclass(frozen=True, slots=True)
class StageWork:
    """One attempt of a stage, by the metrics of its tasks. began: milliseconds since 1970. cpu: seconds of Java in
    tasks, without Python workers. Bytes: to and from Python workers, shuffled (written for exchanges), read and written
    by Spark's readers and writers of files, and collected (the tasks' results, which go to the driver)."""

    began: int
    tasks: int
    cpu: float
    python: int
    shuffled: int
    read: int
    written: int
    collected: int


@dataclass(frozen=True, slots=True)
class LoggedWork:
    """jobs: when each job was submitted, in milliseconds since 1970."""

    jobs: tuple[int, ...]
    stages: tuple[StageWork, ...]

    def between(self, began: int, ended: int) -> LoggedWork:
        """The jobs and stages that began in this time."""
        jobs = tuple(job for job in self.jobs if began <= job <= ended)
        return LoggedWork(jobs, tuple(stage for stage in self.stages if began <= stage.began <= ended))


def event_log(folder: Path) -> dict[str, str]:
    """Settings with which Spark writes its event log into a folder, which is created."""
    folder.mkdir(parents=True)
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


def now() -> int:
    """The current time in the log's unit."""
    return round(time.time() * 1000)


def logged_work(folder: Path) -> LoggedWork:
    """Reads the log of the folder's only application, whose session must have ended."""
    [log] = folder.iterdir()
    jobs: list[int] = []
    stages: dict[tuple[int, int], list[dict[str, Any]]] = {}
    began: dict[tuple[int, int], int] = {}
    for event in _events(log):
        match event["Event"]:
            case "SparkListenerJobStart":
                jobs.append(event["Submission Time"])
            case "SparkListenerStageSubmitted":
                info = event["Stage Info"]
                began[info["Stage ID"], info["Stage Attempt ID"]] = info["Submission Time"]
            case "SparkListenerTaskEnd" if event.get("Task Metrics"):
                python = sum(int(a["Update"]) for a in event["Task Info"]["Accumulables"] if a.get("Name") in _PYTHON)
                task = {**event["Task Metrics"], _PYTHON_BYTES: python}
                stages.setdefault((event["Stage ID"], event["Stage Attempt ID"]), []).append(task)
    return LoggedWork(tuple(jobs), tuple(_stage(began[key], tasks) for key, tasks in stages.items()))


def _events(log: Path) -> Iterator[dict[str, Any]]:
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def _stage(began: int, tasks: list[dict[str, Any]]) -> StageWork:
    return StageWork(
        began,
        len(tasks),
        sum(task["Executor CPU Time"] for task in tasks) / 1e9,
        sum(task[_PYTHON_BYTES] for task in tasks),
        sum(task["Shuffle Write Metrics"]["Shuffle Bytes Written"] for task in tasks),
        sum(task["Input Metrics"]["Bytes Read"] for task in tasks),
        sum(task["Output Metrics"]["Bytes Written"] for task in tasks),
        sum(task["Result Size"] for task in tasks),
    )

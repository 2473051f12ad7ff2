"""Metrics in local files: JSON lines, and a file for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.outputs.ended_run import APPLY, EndedRun, RunMetrics, RunOutput
from pgoutput_etl.outputs.gauges import gauges
from pgoutput_etl.replace_file import replace_file

STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class JsonLines(RunOutput):
    """path: of a file to which each run appends a line, or "stderr"."""

    path: str
    key: ClassVar[str] = "metrics.json"

    def check(self) -> None:
        if self.path != STDERR:
            _check(self.key, self.path)

    def end(self, run: EndedRun) -> None:
        line = f"{run.metrics.to_json()}\n"
        if self.path == STDERR:
            sys.stderr.write(line)
            return
        with Path(self.path).open("ab") as file:
            file.write(line.encode())


@dataclass(frozen=True, slots=True)
class PrometheusFile(RunOutput):
    """path: of the file that each run of apply replaces. Other jobs' files are next to it: shop.backfill.prom."""

    path: str
    key: ClassVar[str] = "metrics.prometheus"

    def check(self) -> None:
        _check(self.key, self.path)

    def end(self, run: EndedRun) -> None:
        path, job = Path(self.path), run.metrics.job
        own = path if job == APPLY else path.with_name(f"{path.stem}.{job}{path.suffix}")
        replace_file(own, prometheus_text(run.metrics), PUBLIC)


def _check(key: str, path: str) -> None:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"{key}: expected a file in an existing folder")
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"{key}: expected a file that can be written")


def prometheus_text(run: RunMetrics) -> str:
    """Prometheus' text format, version 0.0.4."""
    lines = []
    for gauge in gauges(run):
        lines += [f"# HELP {gauge.name} {gauge.description}", f"# TYPE {gauge.name} gauge"]
        for labels, value in gauge.values:
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{gauge.name}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

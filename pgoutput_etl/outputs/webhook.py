"""Notifies a webhook, such as Slack's, of runs that need attention: tables with problems, and runs that failed.

The message has names of tables and the class of an error, but never a value or an error's text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.request import HTTPRedirectHandler, Request, build_opener

from pgoutput_etl.config.settings import Notify, Occasion
from pgoutput_etl.console import shortened
from pgoutput_etl.exit_codes import EXIT_TRY_LATER
from pgoutput_etl.identifiers import printable
from pgoutput_etl.outputs.ended_run import APPLY, EndedRun, RunMetrics, RunOutput

_SECONDS = 10.0

_SHOWN = 10  # tables

# Slack would interpret a name such as <!channel> as a command.
_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class _NoRedirects(HTTPRedirectHandler):
    """The message must not go anywhere except to the configured receiver."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Webhook(RunOutput):
    """Doesn't report polls that found nothing, or runs that another run prevented."""

    notify: Notify
    key: ClassVar[str] = "notify"

    def end(self, run: EndedRun) -> None:
        tables = {occasion.value: [*_tables(run.metrics, occasion)] for occasion in self.notify.on}
        tables = {occasion: names for occasion, names in tables.items() if names}
        has_failed = Occasion.FAILED in self.notify.on and _has_failed(run.metrics)
        if run.found_nothing or not (tables or has_failed):
            return
        body = {
            "text": _sentence(run.metrics, tables).translate(_ESCAPED),
            "source": run.metrics.source,
            "job": run.metrics.job,
            "exit_code": run.metrics.exit_code,
            "error": run.metrics.error,
            "tables": tables,
        }
        headers = {"Content-Type": "application/json"}
        request = Request(self.notify.url, json.dumps(body).encode(), headers)  # Notify only accepts http and https
        build_opener(_NoRedirects).open(request, timeout=_SECONDS).close()


def _tables(metrics: RunMetrics, occasion: Occasion) -> Iterator[str]:
    return (f"{table.schema}.{table.table}" for table in metrics.conditions if table.state == occasion.value)


def _has_failed(metrics: RunMetrics) -> bool:
    return metrics.error is not None and metrics.exit_code != EXIT_TRY_LATER


def _sentence(metrics: RunMetrics, tables: dict[str, list[str]]) -> str:
    if metrics.error is not None:
        run = "the run" if metrics.job == APPLY else metrics.job
        return f"{metrics.source}: {run} failed with {metrics.error} (exit code {metrics.exit_code})"
    shown = {state: shortened(list(map(printable, names)), _SHOWN, "tables") for state, names in tables.items()}
    states = (f"{state}: {', '.join(names)}" for state, names in shown.items())
    return f"{metrics.source}: {'; '.join(states)} (exit code {metrics.exit_code})"

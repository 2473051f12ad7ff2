"""Informs all configured outputs of a run. A failure to publish only causes a warning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgoutput_etl.config.settings import Metrics, Notify
from pgoutput_etl.console import print_to_stderr
from pgoutput_etl.errors import brief
from pgoutput_etl.outputs.ended_run import APPLY, EndedRun, RunOutput
from pgoutput_etl.outputs.files import JsonLines, PrometheusFile
from pgoutput_etl.outputs.openlineage import LineageEvents
from pgoutput_etl.outputs.opentelemetry import Telemetry
from pgoutput_etl.outputs.webhook import Webhook


@dataclass(frozen=True, slots=True)
class RunPublisher:
    """Publishes a run's metrics to all configured outputs. Only `check` raises errors; other failures are warnings."""

    outputs: Sequence[RunOutput]

    @classmethod
    def of(cls, source: str, metrics: Metrics, notify: Notify | None = None, job: str = APPLY) -> RunPublisher:
        """source: the archive's name."""
        found: list[RunOutput] = []
        if metrics.json is not None:
            found.append(JsonLines(metrics.json))
        if metrics.prometheus is not None:
            found.append(PrometheusFile(metrics.prometheus))
        if metrics.opentelemetry:
            found.append(Telemetry())
        if metrics.openlineage is not None:
            found.append(LineageEvents(source, metrics.openlineage, job))
        if notify is not None:
            found.append(Webhook(notify))
        return cls(found)

    def check(self) -> None:
        """Raises ConfigError if runs can't be published. Called before a run does anything."""
        for output in self.outputs:
            output.check()

    def start(self) -> None:
        self._publish(lambda output: output.start())

    def end(self, run: EndedRun) -> None:
        self._publish(lambda output: output.end(run))

    def abort(self) -> None:
        self._publish(lambda output: output.abort())

    def _publish(self, publish: Callable[[RunOutput], None]) -> None:
        for output in self.outputs:
            try:
                publish(output)
            except Exception as error:  # noqa: BLE001 # the run goes on, whatever the error is
                warning = f"{output.key}: the run could not be published: {brief(error)}"
                print_to_stderr(warning, "WARNING", "pgoutput_etl.outputs")

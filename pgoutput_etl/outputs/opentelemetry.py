"""Exports gauges through OpenTelemetry's library, an optional dependency configured by its environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.extras import installing
from pgoutput_etl.outputs.ended_run import EndedRun, RunOutput
from pgoutput_etl.outputs.gauges import Gauge, gauges

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

_EXPORTER = "OTEL_METRICS_EXPORTER"

_GROUP = "opentelemetry_metrics_exporter"  # the entry point group for packages with an exporter


class Telemetry(RunOutput):
    """Exports the metrics of each run as gauges."""

    key = "metrics.opentelemetry"

    def check(self) -> None:
        """Raises ConfigError if the library, or the exporter that the environment names, is not installed."""
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
            raise ConfigError(f"metrics.opentelemetry: OpenTelemetry is not installed: {installing('otel')}")
        if _exporter_name() != "none":
            _exporter(_exporter_name())

    def end(self, run: EndedRun) -> None:
        _export(gauges(run.metrics))


def _exporter_name() -> str:
    return os.environ.get(_EXPORTER) or "otlp"


def _exporter(name: str) -> EntryPoint:
    """Finds an exporter. The extra `otel` installs OTLP over HTTP without gRPC, so `otlp_proto_http` also serves as
    `otlp`."""
    installed = entry_points(group=_GROUP)
    for candidate in ("otlp", "otlp_proto_http") if name == "otlp" else (name,):
        if candidate in installed.names:
            return installed[candidate]
    known = ", ".join(sorted({*installed.names, "none"}))
    raise ConfigError(f"metrics.opentelemetry: no exporter for {_EXPORTER} is installed; expected one of {known}")


def _export(sent: Iterable[Gauge]) -> None:
    """Uses the process's MeterProvider if it has one, otherwise a temporary one that is shut down after everything is
    sent."""
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    provider = get_meter_provider()
    if isinstance(provider, MeterProvider):
        _set(provider, sent)
        if not provider.force_flush():
            raise TimeoutError
        return
    if _exporter_name() == "none":
        return
    exporter = _exporter(_exporter_name()).load()()
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)], shutdown_on_exit=False)
    try:
        _set(provider, sent)
    finally:
        provider.shutdown()


def _set(provider: MeterProvider, sent: Iterable[Gauge]) -> None:
    meter = provider.get_meter("pgoutput_etl")
    for name, description, values in sent:
        gauge = meter.create_gauge(name, description=description)
        for attributes, value in values:
            gauge.set(value, dict(attributes))

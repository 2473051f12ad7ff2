"""Gauges told through OpenTelemetry's own library, as its environment variables say; an optional dependency."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

from pgoutput_etl.errors import ConfigError

_EXPORTER = "OTEL_METRICS_EXPORTER"

_GROUP = "opentelemetry_metrics_exporter"  # where packages that bring an exporter name it

# A name, what it means, and values by attributes.
Gauge = tuple[str, str, Iterable[tuple[Mapping[str, str], float]]]


def check_telemetry() -> None:
    """Raises ConfigError if the library, or the exporter that the environment names, isn't there."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise ConfigError("metrics.opentelemetry: OpenTelemetry is not installed: pip install 'pgoutput-etl[otel]'")
    if _chosen() != "none":
        _exporter(_chosen())


def _chosen() -> str:
    return os.environ.get(_EXPORTER) or "otlp"


def _exporter(name: str) -> EntryPoint:
    """That OTLP by HTTP is enough, and that no gRPC is needed, is what `otel` installs."""
    names = ("otlp", "otlp_proto_http") if name == "otlp" else (name,)
    for wanted in names:
        for found in entry_points(group=_GROUP, name=wanted):
            return found
    known = ", ".join(sorted({found.name for found in entry_points(group=_GROUP)} | {"none"}))
    raise ConfigError(f"metrics.opentelemetry: no exporter for {_EXPORTER} is installed; there are: {known}")


def export(gauges: Iterable[Gauge]) -> None:
    """Through the provider that the process has set up, if it has; else through one of our own, which is shut down once
    all is sent."""
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    there = get_meter_provider()
    if isinstance(there, MeterProvider):
        _set(there, gauges)
        if not there.force_flush():
            raise TimeoutError
        return
    if _chosen() == "none":
        return
    exporter = _exporter(_chosen()).load()()
    provider = MeterProvider([PeriodicExportingMetricReader(exporter)], shutdown_on_exit=False)
    try:
        _set(provider, gauges)
    finally:
        provider.shutdown()


def _set(provider: object, gauges: Iterable[Gauge]) -> None:
    from opentelemetry.sdk.metrics import MeterProvider

    assert isinstance(provider, MeterProvider)
    meter = provider.get_meter("pgoutput_etl")
    for name, about, values in gauges:
        gauge = meter.create_gauge(name, description=about)
        for attributes, value in values:
            gauge.set(value, dict(attributes))

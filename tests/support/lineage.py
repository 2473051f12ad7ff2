"""OpenLineage's events in a file, read back and checked against the classes of OpenLineage's client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def send_to_file(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Configures the client as a user would, to append events to a file."""
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "file")
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__LOG_FILE_PATH", str(path))
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__APPEND", "true")


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events, each of which has passed the validators of the client's classes and has no key unknown to them."""
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    for event in events:
        _check(event)
    return events


def _check(event: dict[str, Any]) -> None:
    from openlineage.client import event_v2
    from openlineage.client.serde import Serde

    values = {key: value for key, value in event.items() if key != "schemaURL"}
    run, job = values["run"], values["job"]
    values |= {
        "eventType": event_v2.RunState(event["eventType"]),
        "run": event_v2.Run(run["runId"], _facets(run["facets"])),
        "job": event_v2.Job(job["namespace"], job["name"], _facets(job["facets"])),
        "inputs": [event_v2.InputDataset(**_with_facets(dataset)) for dataset in event["inputs"]],
        "outputs": [event_v2.OutputDataset(**_with_facets(dataset)) for dataset in event["outputs"]],
    }
    assert json.loads(Serde.to_json(event_v2.RunEvent(**values))) == event


def _with_facets(dataset: dict[str, Any]) -> dict[str, Any]:
    return {key: value if isinstance(value, str) else _facets(value) for key, value in dataset.items()}


def _facets(facets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    from openlineage.client import facet_v2

    modules = [vars(facet_v2)[name] for name in facet_v2.__all__ if name.islower()]
    classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    by_schema = {kind._get_schema(): kind for kind in classes if issubclass(kind, facet_v2.BaseFacet)}
    found: dict[str, Any] = {}
    for name, values in facets.items():
        own = {key: _nested(key, value) for key, value in values.items() if key not in ("_producer", "_schemaURL")}
        found[name] = by_schema[values["_schemaURL"]](**own, producer=values["_producer"])
    return found


def _nested(key: str, value: Any) -> Any:
    """`fields` of the facets schema (a list) and columnLineage (by column) have classes of their own."""
    from openlineage.client.facet_v2 import column_lineage_dataset as lineage
    from openlineage.client.facet_v2 import schema_dataset

    if key != "fields":
        return value
    if isinstance(value, list):
        return [schema_dataset.SchemaDatasetFacetFields(**field) for field in value]
    columns = {}
    for name, column in value.items():
        sources = [
            lineage.InputField(
                **{**source, "transformations": [lineage.Transformation(**t) for t in source["transformations"]]}
            )
            for source in column["inputFields"]
        ]
        columns[name] = lineage.Fields(**{**column, "inputFields": sources})
    return columns

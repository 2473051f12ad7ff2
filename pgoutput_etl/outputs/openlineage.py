"""A run as an OpenLineage run: the Delta tables that it wrote, and their PostgreSQL tables, column by column.

Uses OpenLineage's client, an optional dependency that is configured by its environment variables. Names follow
OpenLineage's naming specification: `{database}.{schema}.{table}` in `postgres://HOST:PORT`, and a path in its file
system. Events contain no values of rows and no error texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from pgoutput_etl.config.settings import SourceDatabase
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.extras import installing
from pgoutput_etl.outputs.ended_run import APPLY, EndedRun, RunOutput, WrittenTable
from pgoutput_etl.places import Place
from pgoutput_etl.targets.column_descriptions import TargetColumn

if TYPE_CHECKING:
    from openlineage.client.event_v2 import InputDataset, OutputDataset

_PRODUCER = "pkg:pypi/pgoutput-etl"  # a package URL, because the producer must be a URI

_NAMESPACE = "OPENLINEAGE_NAMESPACE"  # the client's variable for the namespace of jobs

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>.*)", re.DOTALL)

_OBJECT_STORES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "wasb": "wasb", "wasbs": "wasbs"}


def dataset_name(place: Place) -> tuple[str, str]:
    """Namespace and name of a Delta table's path or catalog name. A local path has the namespace `file` and the
    absolute path as its name; an object's key has no leading slash. A catalog's host is unknown here, so its name is
    the namespace."""
    if place.is_in_catalog:
        return place.catalog_names[0], ".".join(place.catalog_names)
    folder = str(place.table)
    url = _URL.fullmatch(folder)
    if url is None or url["scheme"] == "file":
        return "file", os.path.abspath(folder if url is None else url["path"])  # noqa: PTH100 # Path keeps `..`
    scheme, authority, path = url["scheme"], url["authority"], url["path"]
    if scheme in _OBJECT_STORES:
        return f"{_OBJECT_STORES[scheme]}://{authority}", path.lstrip("/")
    return f"{scheme}://{authority}" if authority else scheme, path


@dataclass(slots=True)
class LineageEvents(RunOutput):
    """START is sent before any other event, with the time when the run began."""

    key: ClassVar[str] = "metrics.openlineage"

    source: str
    database: SourceDatabase
    job: str = APPLY
    began: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    has_started: bool = False
    _run_id: str | None = None

    def check(self) -> None:
        """Raises ConfigError if the client is not installed, or if the environment doesn't say where to send events."""
        if find_spec("openlineage") is None or find_spec("openlineage.client") is None:
            raise ConfigError(
                f"metrics.openlineage: OpenLineage's client is not installed: {installing('openlineage')}"
            )
        from openlineage.client import OpenLineageClient

        try:
            client = OpenLineageClient()
            kind, transport = client.transport.kind, client.config.transport or {}
            client.close(0)
        except Exception as error:  # noqa: BLE001 # each transport raises its own errors
            raise ConfigError(
                f"metrics.openlineage: the client can't use its configuration: {type(error).__name__}"
            ) from None
        if kind == "console" and transport.get("type") != "console":
            raise ConfigError(
                "metrics.openlineage: no transport is configured: set OPENLINEAGE_URL or OPENLINEAGE_CONFIG"
            )

    def start(self) -> None:
        if not self.has_started:
            self.has_started = True
            self._emit("START", self.began)

    def end(self, run: EndedRun) -> None:
        if run.found_nothing:
            return
        if run.error is not None:
            self._end("FAIL", {"errorMessage": self._failure(run.error)})
            return
        inputs = [self._input(table) for table in run.written]
        by_dataset: dict[tuple[str, str], list[WrittenTable]] = {}
        for table in run.written:
            by_dataset.setdefault(dataset_name(table.place), []).append(table)
        outputs = [self._output(dataset, written) for dataset, written in by_dataset.items()]
        self._end("COMPLETE", inputs=inputs, outputs=outputs)

    def abort(self) -> None:
        if self.has_started:
            self._end("ABORT")

    def _failure(self, error: Exception) -> Any:
        """Only has the error's class: its text is for people and may be long."""
        from openlineage.client.facet_v2 import error_message_run

        return error_message_run.ErrorMessageRunFacet(type(error).__name__, "PYTHON", producer=_PRODUCER)

    def _end(self, state: str, run_facets: Mapping[str, Any] | None = None, **datasets: Any) -> None:
        try:
            self.start()
        finally:
            self._emit(state, datetime.now(timezone.utc), run_facets, **datasets)

    def _emit(self, state: str, time: datetime, run_facets: Mapping[str, Any] | None = None, **datasets: Any) -> None:
        """Sends an event. state: the name of a RunState. datasets: `inputs` and `outputs`."""
        from openlineage.client import OpenLineageClient
        from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
        from openlineage.client.facet_v2 import job_type_job
        from openlineage.client.uuid import generate_new_uuid

        self._run_id = self._run_id or str(generate_new_uuid(self.began))
        kind = job_type_job.JobTypeJobFacet("BATCH", "PGOUTPUT_ETL", "JOB", producer=_PRODUCER)
        job = Job(os.environ.get(_NAMESPACE) or "default", f"pgoutput_etl.{self.source}.{self.job}", {"jobType": kind})
        run = Run(self._run_id, dict(run_facets or {}))
        event = RunEvent(
            eventType=RunState[state], eventTime=time.isoformat(), run=run, job=job, producer=_PRODUCER, **datasets
        )
        client = OpenLineageClient()
        try:
            client.emit(event)
        finally:
            client.close()

    def _input(self, table: WrittenTable) -> InputDataset:
        from openlineage.client.event_v2 import InputDataset

        return InputDataset(self.database.namespace, self._source_name(table))

    def _output(self, dataset: tuple[str, str], tables: Sequence[WrittenTable]) -> OutputDataset:
        """A Delta table as a dataset, with its columns and version. tables: several if they share the Delta table."""
        from openlineage.client import facet_v2 as facet
        from openlineage.client.event_v2 import OutputDataset

        columns = {column.name: column for table in tables for column in table.columns}
        fields = [
            facet.schema_dataset.SchemaDatasetFacetFields(column.name, column.type, column.description or None, place)
            for place, column in enumerate(columns.values(), 1)
        ]
        lineage: dict[str, Any] = {}
        for table in tables:
            for column in table.columns:
                inputs = self._inputs(table, column)
                if column.name in lineage:
                    lineage[column.name].inputFields.extend(inputs)
                elif inputs:
                    lineage[column.name] = facet.column_lineage_dataset.Fields(inputs)
        version = str(max(table.version for table in tables))
        rows = sum(table.rows for table in tables)
        of_version = facet.dataset_version_dataset.DatasetVersionDatasetFacet(version, producer=_PRODUCER)
        facets: dict[str, Any] = {"version": of_version}
        if columns:
            of_columns = facet.column_lineage_dataset.ColumnLineageDatasetFacet(lineage, producer=_PRODUCER)
            facets |= {
                "schema": facet.schema_dataset.SchemaDatasetFacet(fields, producer=_PRODUCER),
                "columnLineage": of_columns,
            }
        statistics = facet.output_statistics_output_dataset
        of_rows = statistics.OutputStatisticsOutputDatasetFacet(rows, producer=_PRODUCER)
        return OutputDataset(*dataset, facets=facets, outputFacets={"outputStatistics": of_rows})

    def _inputs(self, table: WrittenTable, column: TargetColumn) -> list[Any]:
        """A column's source, under its current and former names."""
        from openlineage.client.facet_v2 import column_lineage_dataset as facet

        subtype = "IDENTITY" if column.mask is None else "TRANSFORMATION"
        transformation = facet.Transformation("DIRECT", subtype, column.mask or "", masking=column.mask is not None)
        source = (self.database.namespace, self._source_name(table))
        return [facet.InputField(*source, name, [transformation]) for name in column.sources]

    def _source_name(self, table: WrittenTable) -> str:
        return f"{self.database.database}.{table.schema}.{table.table}"

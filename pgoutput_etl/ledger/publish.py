"""Shows a finished batch to readers: a view per table, if configured, then the manifest.

Views are replaced one after the other, each at once. The manifest is written last, so that a run that dies in between
is noticed: the next run finds a manifest of an earlier batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import RunError
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.manifest import Manifest
from pgoutput_etl.machine import THIS_MACHINE, Machine, now
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.delta import make_schema
from pgoutput_etl.spark.shared_file import SharedFile, shared_file

FOLDER = "manifests"


class Publisher(Protocol):
    def has_published(self, done: Batch) -> bool: ...

    def publish(self, done: Batch) -> None:
        """Raises RunError; the batch is done all the same. Called while the batch is claimed."""
        ...


class NoPublisher:
    def has_published(self, done: Batch) -> bool:  # noqa: ARG002
        return True

    def publish(self, done: Batch) -> None: ...


NO_PUBLISHER = NoPublisher()


@dataclass(frozen=True, slots=True)
class DeltaPublisher:
    """file: of the manifest; None if this session can't write one. Then every batch replaces all views."""

    spark: SparkSession
    config: Config
    file: SharedFile | None
    machine: Machine = THIS_MACHINE

    @classmethod
    def of(cls, spark: SparkSession, config: Config) -> DeltaPublisher:
        folder, name = f"{config.state.root.rstrip('/')}/{FOLDER}", f"{path_segment(config.source.name)}.json"
        return cls(spark, config, shared_file(spark, folder, name))

    def has_published(self, done: Batch) -> bool:
        if self.file is None:
            return True
        last = self._last()
        shown = None if last is None else (last.ledger_id, last.batch, last.views)
        return shown == (done.ledger_id, done.number, self.config.target.views)

    def publish(self, done: Batch) -> None:
        last, config = self._last(), self.config
        manifest = Manifest.of(config.source.name, config.target, config.state.root, done, now(self.machine))
        before = {} if last is None else last.view_versions
        after = manifest.view_versions
        self._replace([view for view, shown in after.items() if before.get(view) != shown], after)
        for view in before.keys() - after.keys():
            self._run(view, f"DROP VIEW IF EXISTS {view}")
        if self.file is not None:
            self.file.replace(manifest.to_json())

    def _last(self) -> Manifest | None:
        text = None if self.file is None else self.file.read()
        return None if text is None else Manifest.of_json(text)

    def _replace(self, views: Iterable[str], shown: dict[str, tuple[str, int]]) -> None:
        """Several at a time, so that a query over several views is unlikely to meet some old and some new ones."""
        views = list(views)
        for view in {view.rpartition(".")[0]: view for view in views}.values():
            make_schema(self.spark, view)

        def replace(view: str) -> None:
            place, version = shown[view]
            self._run(view, f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {place} VERSION AS OF {version:d}")

        with ThreadPoolExecutor(1 if is_connect(self.spark) else self.config.merge.parallel_tables) as pool:
            for done in [pool.submit(replace, view) for view in views]:
                done.result()

    def _run(self, view: str, sql: str) -> None:
        try:
            self.spark.sql(sql)
        except PySparkException as error:
            raise RunError(
                f"the view {view} can't be replaced ({error.getCondition()}). The batch is done; the next run tries "
                "again",
                next_job=("apply",),
            ) from error

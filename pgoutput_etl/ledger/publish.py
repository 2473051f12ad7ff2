"""Publishes a finished batch to readers: a view per table, if configured, and then the manifest.

Each view is replaced atomically, but the views are not replaced together. The manifest is written last; if this run
dies before, the next run finds the manifest of an earlier batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, RunError, brief
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.identifiers import path_segment, text_literal
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.manifest import Manifest
from pgoutput_etl.machine import THIS_MACHINE, now
from pgoutput_etl.places import Place
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.delta import is_in_catalog, make_schema
from pgoutput_etl.spark.shared_file import SharedFile, shared_file

FOLDER = "manifests"


_FAILURES = (PySparkException, Py4JError, OSError, RunError)


@dataclass(frozen=True, slots=True)
class DeltaPublisher:
    """file: for the manifest."""

    spark: SparkSession
    config: Config
    file: SharedFile

    @classmethod
    def of(cls, spark: SparkSession, config: Config) -> DeltaPublisher | None:
        """None if this session can't write a manifest. Raises ConfigError for views without a manifest, because nothing
        would show which views are outdated."""
        folder, name = f"{config.state.root.rstrip('/')}/{FOLDER}", f"{path_segment(config.source.name)}.json"
        file = shared_file(spark, folder, name, PUBLIC)
        if file is None and config.target.views is not None:
            raise ConfigError(
                "target.views: views need the manifest, which a client of Spark Connect can't write: put state.root in "
                "a volume, or remove target.views"
            )
        return None if file is None else cls(spark, config, file)

    def has_published(self, done: Batch) -> bool:
        try:
            last = self._last()
        except _FAILURES:
            return False
        shown = None if last is None else (last.ledger_id, last.batch, last.views)
        return shown == (done.ledger_id, done.number, self.config.target.views)

    def publish(self, done: Batch, verified: Mapping[int, int]) -> str | None:
        """Returns the reason for a failure, or None. The batch is done in either case. Call it while the batch is
        claimed. verified: as in `Ledger.verified_through`."""
        try:
            self._publish(done, verified)
        except _FAILURES as error:
            return _reason(error)
        return None

    def _publish(self, done: Batch, verified: Mapping[int, int]) -> None:
        config = self.config
        last = None if config.target.catalog is None else self._last()  # folders have no views to compare
        manifest = Manifest.of(config, done, now(THIS_MACHINE), verified)
        before = {} if last is None else last.view_versions
        after = manifest.view_versions
        self._replace([view for view, shown in after.items() if before.get(view) != shown], before, after)
        for view in before.keys() - after.keys():
            if self._is_own(view):
                self.spark.sql(f"DROP VIEW IF EXISTS {view}")
        self.file.replace(manifest.to_json())

    def _last(self) -> Manifest | None:
        """The stored manifest; None if there is no file or its content isn't a manifest."""
        text = self.file.read()
        try:
            return None if text is None else Manifest.of_json(text)
        except (ValueError, TypeError, KeyError):
            return None

    def _replace(self, views: Sequence[str], before: Collection[str], shown: Mapping[str, tuple[str, int]]) -> None:
        """Replaces several views in parallel, so that a query over several views is unlikely to see a mix of old and
        new ones."""
        for view in {Place(view).catalog_schema: view for view in views}.values():
            make_schema(self.spark, Place(view))

        def replace(view: str) -> None:
            if view not in before and is_in_catalog(self.spark, Place(view)) and not self._is_own(view):
                raise RunError(f"{view} exists, and is not a view of this source: rename it, or change target.views")
            place, version = shown[view]
            properties = f"{text_literal(_OWNER_KEY)} = {text_literal(self.config.source.name)}"
            self.spark.sql(
                f"CREATE OR REPLACE VIEW {view} TBLPROPERTIES ({properties}) "
                f"AS SELECT * FROM {place} VERSION AS OF {version:d}"
            )

        with ThreadPoolExecutor(1 if is_connect(self.spark) else self.config.merge.parallel_tables) as pool:
            for done in [pool.submit(replace, view) for view in views]:
                done.result()

    def _is_own(self, view: str) -> bool:
        """True if a run of this source made the view."""
        try:
            properties = self.spark.sql(f"SHOW TBLPROPERTIES {view}").collect()
        except PySparkException:
            return False
        return any((row["key"], row["value"]) == (_OWNER_KEY, self.config.source.name) for row in properties)


_OWNER_KEY = "pgoutput_etl.source"


def _reason(error: Exception) -> str:
    """The reason in brief, without the error's stack trace."""
    if isinstance(error, RunError):
        return str(error)
    if isinstance(error, PySparkException):
        return error.getCondition() or type(error).__name__
    return brief(error)

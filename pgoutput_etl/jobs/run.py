"""The values that all stages of `apply` and `plan` share, and the landing folder and ledger at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.ingest.landed_files import list_files
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.claims import Claim
from pgoutput_etl.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job. enter: called with the name of each stage as it begins. lap: seconds by stage since the last
    call."""

    spark: SparkSession
    config: Config
    ledger: Ledger
    progress: Progress
    enter: Callable[[str], None]
    lap: Callable[[], Mapping[str, float]]

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        config: Config,
        progress: Progress,
        enter: Callable[[str], None] = no_progress,
        lap: Callable[[], Mapping[str, float]] = dict,
    ) -> Run:
        return cls(spark, config, Ledger(spark, config.state.root, config.source.name), progress, enter, lap)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The landing folder and the ledger at the start of a run.

    last: the interrupted batch, or the last closed one. claim: the newest claim, or None if it must be read again.
    """

    last: Batch | None
    claim: Claim | None
    listing: Listing
    index: FileIndex

    @property
    def interrupted(self) -> Batch | None:
        return self.last if self.last is not None and self.last.resumed else None

    def after(self, last: Batch) -> Backlog:
        """The same files after a batch is closed."""
        return replace(self, last=last, claim=None)


def find_backlog(run: Run) -> Backlog:
    """Lists the landing folder while the ledger is read. Raises RunError if another run is active, even if there is
    nothing to do."""
    run.progress(f"looking for new files in {run.config.source.landing}")
    with ThreadPoolExecutor(2) as pool:
        listing = pool.submit(list_files, run.spark, run.config)
        last = run.ledger.last_batch()
        index = pool.submit(run.ledger.file_index, last)
        claim = run.ledger.claims().refuse_others(Batch.number_of_next(last))
    return Backlog(last, claim, listing.result(), index.result())

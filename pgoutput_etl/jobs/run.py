"""What every stage of `apply` and `plan` shares, and what a run finds when it starts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import no_progress
from pgoutput_etl.ingest.landed_files import list_files
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.claims import Claim
from pgoutput_etl.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job. enter: called with the name of each stage as it begins."""

    spark: SparkSession
    config: Config
    ledger: Ledger
    progress: Callable[[str], None]
    enter: Callable[[str], None]

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        config: Config,
        progress: Callable[[str], None],
        enter: Callable[[str], None] = no_progress,
    ) -> Run:
        return cls(spark, config, Ledger(spark, config.state.root, config.source.name), progress, enter)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The landing folder and the ledger at the start of a run.

    last: the batch to finish if it was interrupted, else the last one that is closed. claim: the newest one, or None
    if another read has to find it.
    """

    last: Batch | None
    claim: Claim | None
    listing: Listing
    index: FileIndex

    @property
    def interrupted(self) -> Batch | None:
        return self.last if self.last is not None and self.last.resumed else None

    def after(self, last: Batch) -> Backlog:
        """The same files, once a batch of them is closed."""
        return replace(self, last=last, claim=None)


def find_backlog(run: Run) -> Backlog:
    """Lists the landing folder while the ledger is read. Raises RunError if another run is at work, even if this one
    would find nothing to do."""
    run.progress(f"looking for new files in {run.config.source.landing}")
    with ThreadPoolExecutor(2) as pool:
        listing = pool.submit(list_files, run.spark, run.config)
        last = run.ledger.last_batch()
        index = pool.submit(run.ledger.file_index, last)
        claim = run.ledger.claims().refuse_others(Batch.number_of_next(last))
    return Backlog(last, claim, listing.result(), index.result())

"""The values that all stages of `apply` and `plan` share, and the landing folder and ledger at the start of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.ingest.landing_folder import LandingFolder, SparkLandingFolder
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.claims import Claim
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger, Ledger
from pgoutput_etl.load.targets import DeltaTargets, Targets
from pgoutput_etl.machine import Machine
from pgoutput_etl.spark.session import Background, background_jobs


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a job, and the objects that it works on. background: runs jobs beside the body of a context.
    archive_of: returns the archive of the batches before a batch. enter: called with the name of each stage as it
    begins. lap: seconds by stage since the last call. is_stopping: True once the run should end after its current
    batch."""

    config: Config
    ledger: Ledger
    landing: LandingFolder
    targets: Targets
    background: Callable[[], AbstractContextManager[Background]]
    archive_of: Callable[[Batch], LedgerArchive]
    progress: Progress = no_progress
    enter: Callable[[str], None] = no_progress
    lap: Callable[[], Mapping[str, float]] = dict
    is_stopping: Callable[[], bool] = lambda: False

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        config: Config,
        progress: Progress,
        enter: Callable[[str], None] = no_progress,
        lap: Callable[[], Mapping[str, float]] = dict,
    ) -> Run:
        ledger = DeltaLedger.of(spark, config)
        landing, targets = SparkLandingFolder(spark, config), DeltaTargets(spark)
        archive_of = partial(DeltaArchive.of, spark, config, ledger)
        return cls(config, ledger, landing, targets, partial(background_jobs, spark), archive_of, progress, enter, lap)

    @property
    def machine(self) -> Machine:
        return self.ledger.machine


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
        """The same files, after a batch was closed."""
        return replace(self, last=last, claim=None)


def find_backlog(run: Run) -> Backlog:
    """Lists the landing folder while the ledger is read. Raises RunError if another run is active, even if there is
    nothing to do."""
    run.progress(f"looking for new files in {run.config.source.landing}")
    with run.machine.pool(2) as pool:
        listing = pool.submit(run.landing.listing)
        last = run.ledger.batches.last()
        index = pool.submit(run.ledger.files.index, last)
        claim = run.ledger.batches.claims().refuse_others(Batch.number_of_next(last), run.progress)
    return Backlog(last, claim, listing.result(), index.result())

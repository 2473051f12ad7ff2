"""The protocol of a batch: claim, prepare, check, begin, write, check, close. Every kind of work runs through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.landing_folder import LandingFolder, SparkLandingFolder
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.claims import Claim
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger, Ledger
from pgoutput_etl.load.repair import RepairChanges
from pgoutput_etl.load.targets import Changes, DeltaTargets, Targets
from pgoutput_etl.machine import Machine
from pgoutput_etl.spark.session import background_jobs
from pgoutput_etl.targets.plan import KeyRanges, TableTask

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class World:
    """Everything that batches read and write. background: a context with threads that run jobs while its body runs.
    archive_of: returns the archive of the batches before a given one. repair_changes: makes the tasks' changes from a
    snapshot's rows and, by OID, the key ranges where tables differ from them."""

    config: Config
    ledger: Ledger
    landing: LandingFolder
    targets: Targets
    background: Callable[[], AbstractContextManager[Executor]]
    archive_of: Callable[[Batch], LedgerArchive]
    repair_changes: Callable[[CommittedBlocks, Iterable[TableTask], Mapping[int, KeyRanges]], Changes]

    @classmethod
    def of(cls, spark: SparkSession, config: Config) -> World:
        ledger = DeltaLedger.of(spark, config)
        archive_of = partial(DeltaArchive.of, spark, config, ledger)
        landing, background = SparkLandingFolder(spark, config), partial(background_jobs, spark)
        targets, repair_changes = DeltaTargets(spark), partial(RepairChanges.of, spark)
        return cls(config, ledger, landing, targets, background, archive_of, repair_changes)

    @property
    def machine(self) -> Machine:
        return self.ledger.machine


@dataclass(frozen=True, slots=True)
class Watch:
    """Observes and stops a run. enter: called with each stage's name when it begins. lap: seconds by stage since the
    last call. is_stopping: True if the run should end after its current batch."""

    progress: Progress = no_progress
    enter: Callable[[str], None] = no_progress
    lap: Callable[[], Mapping[str, float]] = dict
    is_stopping: Callable[[], bool] = lambda: False


class Prepared(ABC, Generic[T_co]):
    """A planned batch, before anything is written.

    batch: as the ledger records it. is_recorded: False if the ledger doesn't record the beginning, because a run that
    dies leaves nothing to finish.
    """

    __slots__ = ()
    batch: Batch
    is_recorded: ClassVar[bool] = True

    def begin(self, record: Callable[[], None]) -> None:
        """Calls `record`, which records the batch's beginning in the ledger, together with anything that must happen
        just before it or can happen at the same time."""
        record()

    @abstractmethod
    def write(self) -> None:
        """Writes all changes outside the ledger. If this run dies, a later run repeats them."""

    @abstractmethod
    def close(self) -> None:
        """Records the batch's end in the ledger, then removes temporary data."""

    @abstractmethod
    def result(self) -> T_co: ...


@dataclass(frozen=True, slots=True)
class Nothing(Generic[T_co]):
    """There is nothing to write, so the batch doesn't begin."""

    result: T_co


class Work(Protocol[T_co]):
    """The work that a batch does."""

    def prepare(
        self, batch: Batch, check_claim: Callable[[], None]
    ) -> AbstractContextManager[Prepared[T_co] | Nothing[T_co]]:
        """Reads what the batch needs, and plans it. Changes nothing.

        batch: the unfinished batch, or a new one after the last. check_claim: call it before every write; raises
        RunError if another run has taken over. Raises PgoutputEtlError if the batch can't be applied.
        """


def run(ledger: Ledger, work: Work[T], last: Batch | None, watch: Watch, claim: Claim | None = None) -> T:
    """Runs the batch after the last one, or finishes the last one if it is unfinished. claim: the newest claim, or None
    to read it from the ledger.

    Raises RunError if another run is active or has added to the ledger since `last` was read. After a PgoutputEtlError,
    either nothing has changed, or the next run finishes the batch.
    """
    batch = Batch.next(last)
    with (
        ledger.batches.claimed(last, batch, watch.progress, claim) as check_claim,
        work.prepare(batch, check_claim) as prepared,
    ):
        if isinstance(prepared, Nothing):
            return prepared.result
        watch.enter("write")
        if prepared.is_recorded:
            check_claim()
            prepared.begin(partial(ledger.batches.begin, prepared.batch))
        prepared.write()
        check_claim()
        watch.enter("ledger")
        prepared.close()
        return prepared.result()

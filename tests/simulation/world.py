"""One simulated history of nights: a receiver, storage, and runs that are killed, stopped, and started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from pgoutput_etl.config.settings import Config, Merge, Source, State, Target
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.jobs.apply.pipeline import apply_run
from pgoutput_etl.jobs.run import Run
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.machine import Process
from pgoutput_etl.replay.mirror import target_row
from pgoutput_etl.transactions.outcome import ACCOUNTS
from tests.simulation.archives import ARCHIVES, Archive, archive
from tests.simulation.landing import Folder, Receiver, SimLandingFolder
from tests.simulation.ledger import ROOT, SOURCE, Chunk, sim_ledger
from tests.simulation.scheduler import Killed, Scheduler, SimMachine, SimPool, SimProcess, StorageError
from tests.simulation.storage import Chances, ConflictError, Faults, Storage, Writer
from tests.simulation.targets import Content, SimTargets

CONFIG = Config(Source(SOURCE, "landing"), Target("root"), State(ROOT))


class BrokenPromiseError(AssertionError):
    """A promise that was broken."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a seed decides before anything happens. skew: seconds that clocks may differ."""

    seed: int
    archive: int
    is_atomic: bool
    runs: int
    skew: float
    renames: bool
    tears: float
    chances: Chances
    max_transactions: int | None

    @classmethod
    def of(cls, seed: int) -> Scenario:
        chance = Random(f"scenario {seed}")
        kinds = chance.choice(("kills", "storage", "everything", "pauses", "nothing"))
        much = chance.choice((0.005, 0.02, 0.05))
        chances = Chances(
            kill=much if kinds in ("kills", "everything") else 0.0,
            pause=much if kinds in ("pauses", "everything") else 0.0,
            fail=much if kinds in ("storage", "everything") else 0.0,
            lose=much if kinds in ("storage", "everything") else 0.0,
            switch=chance.choice((0.1, 0.5, 1.0)),
        )
        is_atomic = chance.random() < 0.6
        return cls(
            seed,
            chance.randrange(ARCHIVES),
            is_atomic,
            chance.choice((2, 3, 4, 6)),
            chance.choice((0.0, 0.0, 20.0, 120.0)) if not is_atomic else chance.choice((0.0, 20.0, 120.0, 900.0)),
            chance.random() < 0.3,
            chance.choice((0.0, 0.5)),
            chances,
            chance.choice((None, None, 1, 3)),
        )


@dataclass(slots=True)
class SimBackground:
    pool: SimPool

    def start(self, work: Callable[[], Any]) -> Any:
        return self.pool.submit(work)


@dataclass(slots=True)
class World:
    scenario: Scenario
    allowed: frozenset[int] | None = None
    keeps_trace: bool = False
    scheduler: Scheduler = field(init=False)
    storage: Storage = field(init=False)
    folder: Folder = field(init=False)
    receiver: Receiver = field(init=False)
    processes: list[SimProcess] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    checked: int = -1
    batches: int = 0

    def __post_init__(self) -> None:
        scenario, seed = self.scenario, self.scenario.seed
        self.scheduler = Scheduler(Random(f"schedule {seed}"), keeps_trace=self.keeps_trace)
        faults = Faults(Random(f"faults {seed}"), scenario.chances, self.allowed)
        self.storage = Storage(self.scheduler, faults, scenario.is_atomic)
        self.folder = Folder(self.scheduler)
        chance = Random(f"receiver {seed}")
        self.receiver = Receiver(self.folder, self.archive, chance, scenario.renames, scenario.tears)

    @property
    def archive(self) -> Archive:
        return archive(self.scenario.archive)

    def run(self) -> None:
        """Raises BrokenPromiseError."""
        chance = Random(f"world {self.scenario.seed}")
        scheduler = self.scheduler
        for _ in range(self.scenario.runs):
            self.receiver.grow(chance.choice((1, 3, 10)))
            for _ in range(chance.randrange(8)):
                self.receiver.act()
                scheduler.now += chance.random() * 60
            self._start(chance)
            lasts = chance.choice((1.0, 3.0, 30.0, 200.0, 300.0, 3000.0))
            self._go_on(scheduler.now + lasts, chance)
        self._come_to_rest()

    def run_alone(self) -> str:
        """One run, to its end; its result."""
        process = self._start(Random(0))
        self._go_on(self.scheduler.now + 1e6, Random(0))
        return self.results.get(process.name, "it does not end")

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Of the ledger."""
        stored = self.storage.table(f"{ROOT}/{table}")
        chunks: list[Chunk] = stored.content(stored.version) if stored.version >= 0 else []
        return [row for chunk in chunks for row in chunk.rows()]

    def new_process(self, chance: Random) -> SimProcess:
        number = len(self.processes)
        host = chance.choice(("a", "b"))
        identity = Process(f"host-{host} boot pid:[1]", 100 + number, 1000 + number)
        skew = (chance.random() - 0.5) * self.scenario.skew
        process = SimProcess(f"run {number} on {host}", identity, skew)
        self.processes.append(process)
        return process

    def _start(self, chance: Random) -> SimProcess:
        process = self.new_process(chance)
        self.scheduler.note(f"{process.name}: starts")
        self.scheduler.start(process, lambda: self._apply(process))
        return process

    def _apply(self, process: SimProcess) -> None:
        machine = SimMachine(self.scheduler, process, self.processes)
        merge = Merge(max_transactions=self.scenario.max_transactions)
        config = replace(CONFIG, merge=merge)

        @contextmanager
        def background() -> Iterator[SimBackground]:
            with machine.pool(2) as pool:
                yield SimBackground(pool)

        run = Run(
            config,
            sim_ledger(self.storage, machine),
            SimLandingFolder(config, self.folder, self.storage, process),
            SimTargets(Writer(self.storage, process), machine),
            background,
            _no_archive,
        )
        try:
            summaries = apply_run(run)
            result = f"done: {', '.join(str(summary.batch) for summary in summaries)}"
        except Killed:
            self.results[process.name] = "killed"
            raise
        except (PgoutputEtlError, StorageError, ConflictError) as error:
            result = f"{type(error).__name__}: {error}"
        except Exception as error:
            result = f"BUG {type(error).__name__}: {error}"
            self.results[process.name] = result
            process.is_dead = True
            raise
        self.results[process.name] = result
        self.scheduler.note(f"{process.name}: {result}")
        process.is_dead = True

    def _go_on(self, until: float, chance: Random) -> None:
        """Lets things happen until a time."""
        scheduler = self.scheduler
        while scheduler.now < until:
            if not self.receiver.is_done and chance.random() < 0.02:
                self.receiver.act()
            if not scheduler.step(until):
                return
            self._check()

    def _come_to_rest(self) -> None:
        """Everything has landed, no other process is left, and storage works: a last run finishes the work."""
        for process in self.processes:
            if not process.is_dead:
                self.scheduler.kill(process)
        self._go_on(self.scheduler.now + 600, Random(0))
        while not self.receiver.is_done:
            self.receiver.grow(1000)
        if self.receiver.compressing is not None:
            self.folder.remove(self.receiver.compressing)
        self.storage.faults.chances = replace(self.storage.faults.chances, kill=0.0, pause=0.0, fail=0.0, lose=0.0)
        self.scheduler.now += 1000
        result = self.run_alone()
        if not result.startswith("done"):
            raise BrokenPromiseError(f"a run after everything failed: {result}")
        self._check()
        landed = len(self.archive.frames)
        if landed and self._reached() != landed:
            raise BrokenPromiseError(f"{self._reached()} of {landed} messages were read after everything was done")

    def _reached(self, batch: int | None = None) -> int:
        """The archive's messages in files up to a batch."""
        rows = (row for row in self.rows("files") if batch is None or row["batch"] <= batch)
        return max((self.receiver.reached.get(row["prefix_hash"], 0) for row in rows), default=0)

    def _check(self) -> None:
        """Checks the promises each time a batch is done."""
        stored = self.storage.table(f"{ROOT}/batches")
        if stored.version == self.checked:
            return
        self.checked = stored.version
        rows = self.rows("batches")
        done = [row for row in rows if row["status"] == "done"]
        begun = [row for row in rows if row["status"] == "begun"]
        for kind in (done, begun):
            numbers = [row["batch"] for row in kind]
            if len(numbers) != len(set(numbers)):
                raise BrokenPromiseError(f"a batch is recorded twice: {numbers}")
        self.batches = len(done)
        beginnings = {row["batch"]: row for row in begun}
        for row in done:
            if row["batch"] not in beginnings:
                raise BrokenPromiseError(f"batch {row['batch']} is done, and its beginning was not recorded")
            self._check_batch(row, beginnings[row["batch"]])

    def _check_batch(self, row: dict[str, Any], begun: dict[str, Any]) -> None:
        number = row["batch"]
        files = [file for file in self.rows("files") if file["batch"] == number]
        read = {file["file"]: (file["offset"], file["consumed"]) for file in files}
        wanted = {file["file"]: (file["offset"], file["consumed"]) for file in begun["files"]}
        if read != wanted:
            raise BrokenPromiseError(f"batch {number} began with {wanted} and ended with {read}")
        for file in files:
            accounted = sum(file[name] or 0 for name in ACCOUNTS.values())
            size = file["consumed"] - file["offset"] if file["status"] == "read" else accounted
            if accounted != size:
                raise BrokenPromiseError(f"batch {number}: {file['path']}: {accounted} of {size} bytes accounted for")
        expected = self.archive.expected(self._reached(number))
        if row["last_commit_lsn"] != expected.lsn:
            raise BrokenPromiseError(f"batch {number}: LSN {row['last_commit_lsn']}, expected {expected.lsn}")
        states = {state["oid"]: state for state in row["tables"]}
        for oid, rows in expected.tables.items():
            state = states.get(oid)
            if rows is None:
                continue
            if state is None or state["status"] != "applied":
                raise BrokenPromiseError(f"batch {number}: table {oid} is not applied: {state and state['reason']}")
            if self._table_rows(state["path"], state["version"]) != rows:
                raise BrokenPromiseError(f"batch {number}: {state['path']}, version {state['version']}, has other rows")

    def _table_rows(self, path: str, version: int) -> tuple[str, ...]:
        table = self.storage.table(path)
        if version > table.version:
            raise BrokenPromiseError(f"{path} has no version {version}")
        content: Content = table.content(version)
        assert content.shape is not None or not content.rows
        return tuple(sorted(repr(target_row(row, content.shape)) for row in content.rows if content.shape is not None))


def _no_archive(batch: Batch) -> Any:
    raise AssertionError(f"batch {batch.number}: no backfill in this simulation")

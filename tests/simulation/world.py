"""One simulated history of nights: a receiver, storage, and runs that are killed, stopped, and started again."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random

from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.machine import Process
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.erasure.request import Erasure
from tests.simulation.archives import ARCHIVES, Archive, archive
from tests.simulation.erasure import random_request
from tests.simulation.jobs import Jobs, config_of
from tests.simulation.landing import Folder, Receiver
from tests.simulation.masks import MASKS
from tests.simulation.promises import UNCHECKED, BrokenPromiseError, Holders, Promises
from tests.simulation.scheduler import Killed, Scheduler, SimMachine, SimProcess, StorageError
from tests.simulation.storage import Chances, Commit, ConflictError, Faults, Kind, Storage
from tests.simulation.targets import Content

DAY = 86_400.0


@cache
def request(number: int) -> Erasure | None:
    """For an erasure of rows of an archive."""
    return random_request(Random(f"request {number}"), archive(number).frames)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a seed decides before anything happens. skew: seconds that clocks may differ. set_back: seconds by which the
    clock of one machine is set back, at least once."""

    seed: int
    archive: int
    is_atomic: bool
    runs: int
    skew: float
    renames: bool
    tears: float
    chances: Chances
    max_transactions: int | None
    set_back: float

    @property
    def is_quiet(self) -> bool:
        """True if no machine and no storage fails."""
        chances = self.chances
        return not (chances.kill or chances.pause or chances.fail or chances.lose)

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
            chance.choice((0.0, 20.0, 120.0, 900.0)),
            chance.random() < 0.3,
            chance.choice((0.0, 0.5)),
            chances,
            chance.choice((None, None, 1, 3)),
            Random(f"clocks {seed}").choice((0.0, 0.0, 0.0, 3600.0)),
        )


@dataclass(slots=True)
class World:
    scenario: Scenario
    allowed: frozenset[int] | None = None
    keeps_trace: bool = False
    scheduler: Scheduler = field(init=False)
    storage: Storage = field(init=False)
    folder: Folder = field(init=False)
    receiver: Receiver = field(init=False)
    holders: Holders = field(init=False)
    promises: Promises = field(init=False)
    processes: list[SimProcess] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    behind: dict[str, float] = field(default_factory=dict)  # seconds, by host
    erasers: list[SimProcess] = field(default_factory=list)
    was_asleep: bool = False  # a run did nothing for days, and woke
    mask: str = field(init=False)  # of the archive's secret column, as the configuration has it

    def __post_init__(self) -> None:
        scenario, seed = self.scenario, self.scenario.seed
        self.mask = Random(f"mask {seed}").choice([*MASKS])
        self.scheduler = Scheduler(Random(f"schedule {seed}"), keeps_trace=self.keeps_trace)
        faults = Faults(Random(f"faults {seed}"), scenario.chances, self.allowed)
        self.storage = Storage(self.scheduler, faults, scenario.is_atomic)
        self.folder = Folder(self.scheduler)
        chance = Random(f"receiver {seed}")
        self.receiver = Receiver(self.folder, self.archive, chance, scenario.renames, scenario.tears)
        self.promises = Promises(self.storage, self.archive, self.receiver)
        if Random(f"erasure {seed}").random() < 0.4:
            self.promises.request = request(self.scenario.archive)
        unseen = UNCHECKED.total_seconds() if scenario.set_back else 0.0
        self.holders = Holders(self.scheduler, unseen)

    @property
    def archive(self) -> Archive:
        return archive(self.scenario.archive)

    def run(self) -> None:
        """Raises BrokenPromiseError."""
        chance = Random(f"world {self.scenario.seed}")
        scheduler = self.scheduler
        for number in range(self.scenario.runs):
            grown, acts = chance.choice((1, 3, 10)), chance.randrange(8)
            if not self._is_erasing():
                self.receiver.grow(grown)
            for _ in range(acts):
                if not self._is_erasing():
                    self.receiver.act()
                scheduler.now += chance.random() * 60
            self._between_runs(chance)
            self._change_the_mask(Random(f"mask {self.scenario.seed} {number}"))
            job = Jobs.apply if number == 0 else self._job(chance)
            if not self._erase_instead(chance, number):
                self.start(chance, self._snapshot_instead(number) or job)
            lasts = chance.choice((1.0, 3.0, 30.0, 200.0, 300.0, 3000.0))
            self._go_on(scheduler.now + lasts, chance)
            if number == 0 and self.scenario.set_back:
                self._set_a_clock_back(Random(f"host {self.scenario.seed}"))
        self._come_to_rest()

    def _between_runs(self, chance: Random) -> None:
        """Days may pass, and another program may change a table. On S3, a run that was stopped for days does not go on:
        its commit could take the place of another one (docs/storage.md)."""
        if chance.random() < 0.2:
            if not self.storage.is_atomic:
                self._kill_all()
            self.was_asleep = self.was_asleep or not all(process.is_dead for process in self.processes)
            self.scheduler.now += chance.choice((2.0, 8.0)) * DAY
        is_idle = all(process.is_dead for process in self.processes) and not self.promises.is_interrupted
        if chance.random() < 0.2 and is_idle:
            self._change_a_table(chance)

    def _change_the_mask(self, chance: Random) -> None:
        if self.archive.secret is not None and chance.random() < 0.3:
            self.mask = chance.choice([*MASKS])
            self.scheduler.note(f"the configuration is changed: {self.mask}")

    def _set_a_clock_back(self, chance: Random) -> None:
        """For the machine's runs, also those that are at work, and for those that start later."""
        host, seconds = chance.choice(("a", "b")), self.scenario.set_back
        self.scheduler.note(f"the clock of {host} is set back by {seconds:.0f} s")
        self.behind[host] = self.behind.get(host, 0.0) + seconds
        for process in self.processes:
            if process.host == host:
                process.skew -= seconds

    def _change_a_table(self, chance: Random) -> None:
        newest = self.promises.newest
        paths = [state["path"] for state in newest["tables"] if state["version"] >= 0] if newest is not None else []
        if paths:
            path = chance.choice(sorted(paths))
            table = self.storage.table(path)

            def delete_some(content: Content) -> Content:
                return replace(content, rows=content.rows[::2], is_foreign=True)

            self.scheduler.note(f"another program deletes rows of {path}")
            commit = Commit("DELETE", Kind.CHANGE, delete_some, at=self.scheduler.now)
            table.put(table.version + 1, commit, only_if_absent=True)

    def _job(self, chance: Random) -> Callable[[Jobs], str]:
        kind, own = chance.random(), Random(chance.random())
        if kind < 0.4:
            return Jobs.apply
        if kind < 0.7:
            last = self.archive.expected(len(self.archive.frames)).lsn
            return lambda jobs: jobs.some_backfill(own, last)
        if kind < 0.82:
            return Jobs.maintain
        return Jobs.redrive if kind < 0.93 else Jobs.read

    def _snapshot_instead(self, number: int) -> Callable[[Jobs], str] | None:
        """Has a draw of its own, so that seeds without a snapshot stay as they were."""
        chance = Random(f"snapshot {self.scenario.seed} {number}")
        if number == 0 or chance.random() >= 0.4 or self.erasers:  # the server's rows are not erased
            return None
        server = self.archive.snapshot(chance.randrange(len(self.archive.frames)) + 1)
        return lambda jobs: jobs.snapshot(server)

    def _is_erasing(self) -> bool:
        """No receiver writes to files that are erased from, or gives them other names."""
        return self.promises.is_erasing or not all(process.is_dead for process in self.erasers)

    def _erase_instead(self, chance: Random, number: int) -> bool:
        """Once nobody else is at work, and the receiver has begun another file; or finishes an erasure."""
        asked = self.promises.request
        own = Random(f"erasure {self.scenario.seed} {number}")
        if asked is None or number == 0 or own.random() >= 0.5:
            return False
        is_idle = all(process.is_dead for process in self.processes)
        if not self.promises.is_erasing and not (is_idle and not self.promises.is_interrupted):
            return False
        if not self.promises.is_erasing:
            self._close_files()
        self.erasers.append(self.start(chance, lambda jobs: jobs.forget(asked)))
        return True

    def _close_files(self) -> None:
        if self.receiver.compressing is not None:
            self.folder.remove(self.receiver.compressing)
            self.receiver.compressing = None
        self.receiver.rotate()

    def run_alone(self, job: Callable[[Jobs], str] = Jobs.apply) -> str:
        """One run, to its end; its result."""
        process = self.start(Random(0), job)
        self._go_on(self.scheduler.now + 1e6, Random(0))
        return self.results.get(process.name, "it does not end")

    def new_process(self, chance: Random) -> SimProcess:
        number = len(self.processes)
        host = chance.choice(("a", "b"))
        identity = Process(f"host-{host} boot pid:[1]", 100 + number, 1000 + number)
        skew = (chance.random() - 0.5) * self.scenario.skew - self.behind.get(host, 0.0)
        process = SimProcess(f"run {number} on {host}", host, identity, skew)
        self.processes.append(process)
        return process

    def start(self, chance: Random, job: Callable[[Jobs], str]) -> SimProcess:
        process = self.new_process(chance)
        self.scheduler.note(f"{process.name}: starts")
        self.scheduler.start(process, lambda: self._run(process, job))
        return process

    def _run(self, process: SimProcess, job: Callable[[Jobs], str]) -> None:
        machine = SimMachine(self.scheduler, process, self.processes)
        config = config_of(self.archive.rules(self.mask), self.scenario.max_transactions)
        jobs = Jobs.of(config, self.folder, machine, self.holders, self.promises)
        try:
            result = f"done: {job(jobs)}"
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
        self.promises.check_secrecy("the error", result)
        self.scheduler.note(f"{process.name}: {result}")
        process.is_dead = True
        is_quiet = self.scenario.is_quiet and not self.was_asleep
        if is_quiet and result.startswith("ConflictError"):  # as claims keep runs apart
            raise BrokenPromiseError(f"a run failed although storage and machines worked: {result}")

    def _go_on(self, until: float, chance: Random) -> None:
        """Lets things happen until a time."""
        scheduler = self.scheduler
        while scheduler.now < until:
            if not self.receiver.is_done and chance.random() < 0.02 and not self._is_erasing():
                self.receiver.act()
            if not scheduler.step(until):
                return
            self.promises.after_step()

    def _kill_all(self) -> None:
        for process in self.processes:
            if not process.is_dead:
                self.scheduler.kill(process)
        self._go_on(self.scheduler.now + 600, Random(0))

    def _come_to_rest(self) -> None:
        """Everything has landed, no other process is left, and storage works: a last run finishes the work, and
        backfills repair what another program has changed."""
        self._kill_all()
        if not self._is_erasing():
            self._land_the_rest()
        self.storage.faults.chances = replace(self.storage.faults.chances, kill=0.0, pause=0.0, fail=0.0, lose=0.0)
        self.scheduler.now += 1000 + self.scenario.set_back
        self._settle()
        foreign = self.promises.foreign_tables()
        if self.erasers:  # the server still has the rows of tables that were loaded
            foreign = [name for name in foreign if not self.promises.loaded]
        if foreign:
            self._rebuild(foreign)
            left = self.promises.foreign_tables()
            if left:
                raise BrokenPromiseError(f"after a backfill, {', '.join(left)} has rows of another program")
        if self.scenario.seed % 4 == 0:
            self._finish(Jobs.maintain)
        if self.promises.request is not None and self.scenario.seed % 2:
            self._erase_at_rest(self.promises.request)
        self.promises.at_rest()

    def _erase_at_rest(self, asked: Erasure) -> None:
        """And rebuild from what the files still have."""
        erasing = partial(Jobs.forget, erasure=asked)
        if "masked in another way" in (result := self.run_alone(erasing)):
            if not self._can_change_the_mask():
                return
            self._rebuild(["*"])
            self._finish(erasing)
        elif not result.startswith("done"):
            raise BrokenPromiseError(f"an erasure after everything failed: {result}")
        self.erasers.append(self.processes[-1])
        self._finish(Jobs.redrive)
        self._rebuild(["*"])

    def _land_the_rest(self) -> None:
        while not self.receiver.is_done:
            self.receiver.grow(1000)
        self._close_files()

    def _settle(self) -> None:
        """A last run finishes the work, under the masks that it was begun with; then tables get the latest ones."""
        latest, result = self.mask, ""
        for self.mask in (latest, *MASKS, *MASKS):  # one to restore for an interrupted batch, one for the tables
            if self.promises.is_erasing:
                asked = self.promises.request
                assert asked is not None
                result = self.run_alone(partial(Jobs.forget, erasure=asked))
            if not self.promises.is_erasing:
                self._land_the_rest()
                result = self.run_alone()
            if self.archive.secret is None or not re.search(
                "another configuration|other `columns`|this configuration", result
            ):
                break
        if not result.startswith("done"):
            raise BrokenPromiseError(f"a run after everything failed: {result}")
        if self.mask != latest and self._can_change_the_mask():
            self.mask = latest
            self._rebuild(["*"])
            self._finish(Jobs.apply)

    def _can_change_the_mask(self) -> bool:
        """A table that was loaded must be loaded again."""
        secret = self.archive.secret
        assert secret is not None
        server = None if self.erasers else self.archive.snapshot(len(self.archive.frames))
        return secret.oid not in self.promises.loaded or (server is not None and secret.oid in server.rows)

    def _rebuild(self, names: Sequence[str]) -> None:
        """From the archive; or from the server, if the table was loaded and its first version is no longer there."""
        result = self.run_alone(lambda jobs: jobs.backfill(BackfillRequest(tuple(names))))
        if "can't be read as of version" in result or "load a snapshot" in result:
            server = self.archive.snapshot(len(self.archive.frames))
            self._finish(lambda jobs: jobs.snapshot(server))
        elif not result.startswith("done"):
            raise BrokenPromiseError(f"a run after everything failed: {result}")

    def _finish(self, job: Callable[[Jobs], str]) -> None:
        result = self.run_alone(job)
        if not result.startswith("done"):
            raise BrokenPromiseError(f"a run after everything failed: {result}")

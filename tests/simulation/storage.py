"""Simulated storage: effects that may fail, and Delta tables in memory that follow Delta's transaction rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random
from typing import Any, NoReturn, TypeVar

from pgoutput_etl.ledger.claims import RENEWAL
from tests.simulation.scheduler import Killed, Scheduler, SimProcess, StorageError

T = TypeVar("T")

# Seconds. On S3, a run that was stopped for longer between Delta's look for a commit and its put does not go on:
# another run may have taken over, whose commit it would replace (docs/storage.md). A run that has just checked its
# claim has this time left.
LONGEST_LOOK = (RENEWAL / 2).total_seconds()


class ConflictError(OSError):
    """Another commit won, and this one can't be made after it."""


class FilesRemovedError(Exception):
    """VACUUM has removed files of the version that is read."""


@dataclass(frozen=True, slots=True)
class Chances:
    """Probabilities per effect. kill: the process; pause: the process, for minutes; fail: the operation has no effect;
    lose: its answer is lost; linger: a killed process's write happens later; switch: another thread goes first."""

    kill: float = 0.0
    pause: float = 0.0
    fail: float = 0.0
    lose: float = 0.0
    linger: float = 0.3
    switch: float = 0.3


@dataclass(slots=True)
class Faults:
    """Decides which effects fail. allowed: numbers of the only faults that happen; all if None. longest_linger: in
    seconds."""

    chance: Random
    chances: Chances
    allowed: frozenset[int] | None = None
    count: int = 0
    longest_linger: float = 60.0
    happened: list[tuple[int, str]] = field(default_factory=list)

    def draw(self, is_write: bool) -> str | None:
        chances, drawn = self.chances, self.chance.random()
        kinds = [("kill", chances.kill), ("pause", chances.pause), ("fail", chances.fail)]
        kinds += [("lose", chances.lose)] if is_write else []
        for kind, probability in kinds:
            if drawn < probability:
                number, self.count = self.count, self.count + 1
                if self.allowed is not None and number not in self.allowed:
                    return None
                self.happened.append((number, kind))
                return kind
            drawn -= probability
        return None


@dataclass(slots=True)
class Storage:
    """is_atomic: a commit's file is put on condition that it doesn't exist, as on POSIX file systems and Azure;
    otherwise a writer first looks whether it exists, as Delta does on S3."""

    scheduler: Scheduler
    faults: Faults
    is_atomic: bool
    tables: dict[str, DeltaTable] = field(default_factory=dict)
    objects: dict[str, str] = field(default_factory=dict)
    staged: dict[str, bytes] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)  # of an erasure, until it is done
    effects: int = 0
    changes: int = 0  # attempts to put a commit

    def table(self, path: str) -> DeltaTable:
        return self.tables.setdefault(path, DeltaTable(path))

    def read(self, process: SimProcess, what: str, do: Callable[[], T]) -> T:
        return self._effect(process, what, do, is_write=False)

    def write(self, process: SimProcess, what: str, do: Callable[[], T]) -> T:
        return self._effect(process, what, do, is_write=True)

    def _effect(self, process: SimProcess, what: str, do: Callable[[], T], is_write: bool) -> T:
        scheduler = self.scheduler
        if process.is_dead:
            raise Killed
        self.effects += 1
        scheduler.now += scheduler.chance.random() * (2.0 if is_write else 0.5)
        fault = self.faults.draw(is_write)
        if fault == "pause":
            self._pause(process)
            scheduler.wait(process)
        elif scheduler.chance.random() < self.faults.chances.switch:
            scheduler.wait(process)
        if fault == "kill":
            self._kill(process, what, do, is_write)
        if fault == "fail":
            scheduler.note(f"{process.name}: {what}: fails")
            raise StorageError(f"{what}: 503 Slow Down")
        result = do()
        if is_write:
            scheduler.note(f"{process.name}: {what}{': its answer is lost' if fault == 'lose' else ''}")
        if fault == "lose":
            raise StorageError(f"{what}: timeout")
        return result

    def _pause(self, process: SimProcess) -> None:
        seconds = self.faults.chance.choice((30.0, 100.0, 170.0, 200.0, 400.0))
        self.scheduler.note(f"{process.name}: stops for {seconds:.0f} s")
        process.stopped_until = self.scheduler.now + seconds
        if self.faults.chance.random() < 0.5:
            process.suspended += seconds

    def _kill(self, process: SimProcess, what: str, do: Callable[[], object], is_write: bool) -> NoReturn:
        happens = self.faults.chance.random()
        if is_write and happens < self.faults.chances.linger:
            seconds = self.faults.chance.random() * self.faults.longest_linger
            self.scheduler.note(f"{process.name}: {what}: sent, and arrives {seconds:.0f} s later")

            def arrive() -> None:
                self.scheduler.note(f"arrives: {process.name}: {what}")
                do()

            self.scheduler.at(self.scheduler.now + seconds, arrive)
        elif is_write and happens < 0.65:
            self.scheduler.note(f"{process.name}: {what}")
            do()
        self.scheduler.kill(process)
        raise Killed


class Kind(Enum):
    """What a commit does, as far as others conflict with it."""

    APPEND = "it read nothing, and adds rows"
    CHANGE = "it read the table, and replaces files"
    COMPACT = "it replaces files by others with the same rows"
    METADATA = "it creates the table, or changes its columns or all of its files"
    MARK = "it changes nothing: the beginning or the end of VACUUM"

    def conflicts_with(self, winner: Kind) -> bool:
        """True if a commit of this kind can't be made after `winner`, which it didn't see."""
        if Kind.MARK in (self, winner):
            return False
        if Kind.METADATA in (self, winner):
            return True
        return self is Kind.CHANGE or (self is Kind.COMPACT and winner is not Kind.APPEND)

    @property
    def removes_files(self) -> bool:
        """Taken for more than Delta does: a MERGE keeps files, and ALTER TABLE keeps all."""
        return self not in (Kind.APPEND, Kind.MARK)


@dataclass(frozen=True, slots=True)
class Commit:
    """change: from the table's content before it. at: seconds since 1970, by the clock of the commit's machine."""

    operation: str
    kind: Kind
    change: Callable[[Any], Any]
    transaction: tuple[str, int] | None = None
    metadata: Mapping[str, Any] | None = None
    result: tuple[int, int, int] = (0, 0, 0)
    at: float = 0.0

    @property
    def application(self) -> str | None:
        return None if self.transaction is None else self.transaction[0]


@dataclass(slots=True)
class DeltaTable:
    """The commits of a table, and its content after each. removed: versions whose files VACUUM has removed. lost: how
    often a commit took the place of another one."""

    path: str
    commits: list[Commit] = field(default_factory=list)
    contents: list[Any] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)
    lost: int = 0

    @property
    def version(self) -> int:
        return len(self.commits) - 1

    def read(self, version: int) -> Any:
        """As `content`, by a reader that needs the version's files. Raises FilesRemovedError."""
        if version in self.removed:
            raise FilesRemovedError(f"{self.path}: VACUUM has removed files of version {version}")
        return self.content(version)

    def content(self, version: int) -> Any:
        for number in range(len(self.contents), version + 1):
            before = self.contents[-1] if self.contents else None
            self.contents.append(self.commits[number].change(before))
        return self.contents[version]

    def has_transaction(self, version: int, transaction: tuple[str, int] | None) -> bool:
        """True if the table's commits up to that version have this one of the application, or a later one."""
        if transaction is None:
            return False
        application, number = transaction
        made = (c.transaction for c in self.commits[: version + 1] if c.transaction is not None)
        return any(own == application and n >= number for own, n in made)

    def put(self, version: int, commit: Commit, only_if_absent: bool) -> bool:
        """Returns False if the version exists."""
        if version < len(self.commits):
            if only_if_absent:
                return False
            self.commits[version] = commit  # as an object on S3: the commit that was there is lost
            del self.contents[version:]
            self.removed -= set(range(version, len(self.commits)))
            self.lost += 1
            return True
        assert version == len(self.commits)
        self.commits.append(commit)
        return True

    def older_versions(self) -> list[int]:
        """Those that can be read, and have other rows than the newest one."""
        others = (n for n in range(self.version) if self.content(n) is not self.content(self.version))
        return [n for n in others if n not in self.removed]

    def expired(self, newest: int, expiry: float) -> set[int]:
        """The versions before `newest` with files that it doesn't use, and that were taken out of use before `expiry`,
        as far as they are still there."""
        found: set[int] = set()
        removed_at: float | None = None
        for version in range(newest, -1, -1):
            if removed_at is not None and removed_at < expiry:
                found.add(version)
            if self.commits[version].kind.removes_files:
                removed_at = self.commits[version].at
        return found - self.removed


@dataclass(slots=True)
class Writer:
    """Commits to tables for one process, as Delta does."""

    storage: Storage
    process: SimProcess

    def read_version(self, path: str) -> int:
        """-1 without a table."""
        return self.storage.read(self.process, f"read {path}", lambda: self.storage.table(path).version)

    def commit(self, path: str, prepare: Callable[[Any], Commit]) -> int | None:
        """The version of the new commit; None if its transaction was committed before. prepare: makes the commit from
        the table's content, None without a table. Raises ConflictError."""
        table = self.storage.table(path)
        read = self.read_version(path)
        commit = prepare(table.content(read) if read >= 0 else None)
        commit = replace(commit, at=self.storage.scheduler.now + self.process.skew)
        if table.has_transaction(read, commit.transaction):
            return None
        version = read + 1
        while not self._put(table, version, commit):
            winner = table.commits[version]
            if winner.application is not None and winner.application == commit.application:
                raise ConflictError(f"{path}: a concurrent commit with the same transaction identifier")
            if commit.kind.conflicts_with(winner.kind):
                raise ConflictError(f"{path}: a concurrent commit")
            version += 1
        return version

    def vacuum(self, path: str, hours: int) -> None:
        """Removes files that the version read doesn't use, and that were taken out of use so many hours ago."""
        table = self.storage.table(path)
        newest = self.read_version(path)
        expiry = self.storage.scheduler.now + self.process.skew - hours * 3600
        if self.storage.is_atomic:  # on S3, Delta doesn't mark it in the log
            self.commit(path, lambda _: Commit("VACUUM START", Kind.MARK, lambda content: content))

        def remove() -> None:
            table.removed |= table.expired(newest, expiry)

        self.storage.write(self.process, f"vacuum {path}", remove)
        if self.storage.is_atomic:
            self.commit(path, lambda _: Commit("VACUUM END", Kind.MARK, lambda content: content))

    def _put(self, table: DeltaTable, version: int, commit: Commit) -> bool:
        what = f"commit {table.path} {version} {commit.operation}"
        storage = self.storage

        def put() -> bool:
            storage.changes += 1
            return table.put(version, commit, only_if_absent=storage.is_atomic)

        if storage.is_atomic:
            return storage.write(self.process, what, put)
        if storage.read(self.process, what, lambda: version <= table.version):
            return False
        looked = storage.scheduler.now

        def put_in_time() -> bool:
            if not self.process.is_dead and storage.scheduler.now - looked > LONGEST_LOOK:
                storage.scheduler.kill(self.process)
                raise Killed
            return put()

        return storage.write(self.process, what, put_in_time)

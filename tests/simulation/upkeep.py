"""Maintenance of simulated tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgoutput_etl.console import Progress
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta_history import changes_files
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.transactions.outcome import TRIMMED, TransactionStatus
from pgoutput_etl.work.upkeep.retention import LEAST_SMALL_FILES, FileCounts, RetentionRule
from tests.simulation.ledger import ROOT, SimStore
from tests.simulation.scheduler import SimMachine
from tests.simulation.storage import Commit, ConflictError, Kind, Writer

_FILES = LEAST_SMALL_FILES // 2  # of each commit, so that few of them are worth an OPTIMIZE


@dataclass(frozen=True, slots=True)
class SimTableUpkeep:
    """upkeep.TableUpkeep, for one process."""

    writer: Writer
    path: str

    def exists(self) -> bool:
        return self.writer.read_version(self.path) >= 0

    def measure(self, expiry: datetime) -> FileCounts:
        newest = self.writer.read_version(self.path)
        table = self.writer.storage.table(self.path)
        files = 0
        for commit in table.commits[: newest + 1]:
            files = 1 if commit.kind is Kind.COMPACT else files + _FILES * (commit.kind is not Kind.MARK)
        expired = len(table.expired(newest, expiry.timestamp()))
        return FileCounts(files, files, files, files + expired, files + expired, expired)

    def commits_since(self, version: int) -> tuple[int, list[str]]:
        newest = self.writer.read_version(self.path)
        commits = enumerate(self.writer.storage.table(self.path).commits[: newest + 1])
        operations = {number: commit.operation for number, commit in commits if number >= version}
        changed = [number for number, operation in operations.items() if changes_files(operation)]
        return max(changed, default=version), [o for number, o in operations.items() if number > version]

    def is_unclustered(self) -> bool | None:
        return None

    def optimize(self, order: Sequence[str] = ()) -> bool:  # noqa: ARG002
        self.writer.commit(self.path, lambda _: Commit("OPTIMIZE", Kind.COMPACT, lambda content: content))
        return True

    def vacuum(self, hours: int) -> None:
        self.writer.vacuum(self.path, hours)

    def remove(self) -> str | None:
        commits = self.writer.storage.table(self.path).commits
        self.writer.storage.write(self.writer.process, f"remove {self.path}", commits.clear)
        return None

    def commits_since_checkpoint(self) -> int | None:
        return 0

    def checkpoint(self) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class SimUpkeep:
    """upkeep.Upkeep, for one process."""

    store: SimStore
    machine: SimMachine

    @property
    def conflicts(self) -> tuple[type[Exception], ...]:
        return (ConflictError,)

    def table(self, place: Place) -> SimTableUpkeep:
        return SimTableUpkeep(self.store.writer, str(place))

    def ledger_table(self, name: str) -> SimTableUpkeep:
        return self.table(Place(self.ledger_path(name)))

    def ledger_path(self, name: str) -> str:
        return f"{ROOT}/{name}"

    def obsolete_rows(self, rule: RetentionRule) -> int:
        return len(self._obsolete(rule))

    def last_obsolete_commit(self, rule: RetentionRule) -> int:
        rows = [row for row in self._rows(rule) if _is_ordinary(row) and row["batch"] < rule.before]
        return max((row["commit_lsn"] for row in rows if row["commit_lsn"] is not None), default=0)

    def delete_obsolete(self, rule: RetentionRule) -> None:
        if rule.table != "transactions":
            self.store.delete(rule.table, lambda row: _is_old(row, rule))
            return
        obsolete = {(row["file"], row["unit"]) for row in self._obsolete(rule)}

        def is_obsolete(row: dict[str, Any]) -> bool:
            return _is_old(row, rule) and _is_ordinary(row) and (row["file"], row["unit"]) in obsolete

        self.store.delete("transactions", is_obsolete)

    def is_shared(self) -> bool:
        return False

    def pool(self, verb: str, progress: Progress) -> TablePool:
        return TablePool(2, verb, progress, self.machine.pool)

    def is_running(self) -> bool:
        return True

    def _rows(self, rule: RetentionRule) -> list[dict[str, Any]]:
        names = {"batch", rule.column}
        if rule.table == "transactions":
            names |= {"units", "fate", "file", "unit", "commit_lsn", "commit_ts"}
        return self.store.rows(rule.table, sorted(names))

    def _obsolete(self, rule: RetentionRule) -> list[dict[str, Any]]:
        """Of ordinary transactions, all but each file's first and last ones by LSN and by time."""
        old = [row for row in self._rows(rule) if _is_old(row, rule)]
        if rule.table != "transactions":
            return old
        old = [row for row in old if _is_ordinary(row)]
        committed: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for row in old:
            if row["fate"] == TransactionStatus.COMMITTED.value:
                committed.setdefault((row["batch"], row["file"]), []).append(row)
        ends = {
            (*place, extreme((row[column], row["unit"]) for row in rows)[1])
            for place, rows in committed.items()
            for column in ("commit_lsn", "commit_ts")
            for extreme in (min, max)
        }
        return [row for row in old if (row["batch"], row["file"], row["unit"]) not in ends]


def _is_old(row: dict[str, Any], rule: RetentionRule) -> bool:
    return row[rule.column] is not None and row[rule.column] < rule.before


def _is_ordinary(row: dict[str, Any]) -> bool:
    """units: NULL, or read as no list at all."""
    return row["units"] is None and row["fate"] != TRIMMED

"""The facts about a run that outputs receive, and the interface of an output."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from pgoutput_etl.places import Place
from pgoutput_etl.targets.column_descriptions import TargetColumn

APPLY = "apply"


@dataclass(frozen=True, slots=True)
class TableMetrics:
    """rows: row count of the Delta table after the run; None if the table is held."""

    schema: str
    table: str
    rows: int | None
    inserted: int
    updated: int
    deleted: int
    held: bool


@dataclass(frozen=True, slots=True)
class ConditionMetrics:
    """A table that may be inconsistent with the others after the run. mismatches: number of changes that contradict its
    rows."""

    schema: str
    table: str
    state: str
    mismatches: int


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One run with all its batches. at, timestamp: the run's end. seconds: the run's duration; stages: the duration of
    each stage. job: jobs other than apply only have tables, rows, and conditions of the tables that they changed.

    bytes: size as landed. content_bytes: decompressed size by account. transactions: counts by status.
    verified_through: by table, the last LSN at which `verify` found it equal to the server's. lag_seconds: time from
    the archive's last commit to the run's end; None if no commit is known. error: the class of a failed run's error;
    such a run has no other metrics.
    """

    source: str
    at: str
    timestamp: float
    exit_code: int
    seconds: float
    stages: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    batches: int = 0
    files: int = 0
    bytes: int = 0
    content_bytes: dict[str, int] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    logical_messages: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    tables: tuple[TableMetrics, ...] = ()
    conditions: tuple[ConditionMetrics, ...] = ()
    verified_through: dict[str, int] = field(default_factory=dict)
    last_commit_lsn: int | None = None
    last_commit_timestamp: float | None = None
    lag_seconds: float | None = None
    job: str = APPLY

    def to_json(self) -> str:
        """The metrics as a single line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table that a run wrote. rows: inserted and updated. columns, place, version: after the run; columns are empty
    if they are the same as after the last apply."""

    schema: str
    table: str
    place: Place
    version: int
    rows: int
    columns: tuple[TargetColumn, ...]


@dataclass(frozen=True, slots=True)
class EndedRun:
    """written: the tables that it wrote. error: of a failed run. found_nothing: the run is a poll that found nothing to
    do."""

    metrics: RunMetrics
    written: tuple[WrittenTable, ...] = ()
    error: Exception | None = None
    found_nothing: bool = False


class RunOutput(ABC):
    """A destination for information about runs. Every method except `check` may raise whatever its library raises.

    key: in the configuration, for messages.
    """

    key: ClassVar[str]

    def check(self) -> None:
        """Raises ConfigError if runs can't be published. Called before a run does anything."""
        return

    def start(self) -> None:
        """The run begins."""
        return

    @abstractmethod
    def end(self, run: EndedRun) -> None:
        """The run is done, or has failed."""

    def abort(self) -> None:
        """The process is being stopped, or a later run must do the work."""
        return

"""Reports what the start job did or would do, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from pgoutput_etl.console import print_parts
from pgoutput_etl.exit_codes import EXIT_DONE
from pgoutput_etl.load.summary import NO_CHANGES, ChangedTables
from pgoutput_etl.work.files.report import RunReport, print_run
from pgoutput_etl.work.snapshot.report import SnapshotSummary, print_snapshot


@dataclass(frozen=True, slots=True)
class StartStep:
    """is_done: nothing remains to be done."""

    text: str
    command: str
    is_done: bool

    def line(self) -> str:
        return f"{self.text}{' (done)' if self.is_done else ''}:\n   {self.command}"


@dataclass(frozen=True, slots=True)
class StartSummary:
    """steps: of a rehearsal. snapshot: None if no table lacked rows. runs: the batches that apply ran."""

    source: str
    steps: Sequence[StartStep] = ()
    snapshot: SnapshotSummary | None = None
    runs: RunReport | None = None
    remarks: Sequence[str] = ()

    @property
    def changed(self) -> ChangedTables:
        loaded = NO_CHANGES if self.snapshot is None else self.snapshot.changed
        if self.runs is None:
            return loaded
        batches = self.runs.batches
        tables = [*loaded.tables, *(table for batch in batches for table in batch.tables)]
        tables.sort(key=lambda table: table.version)  # as they were written: batches may have come before the load
        columns = {name: columns for batch in batches for name, columns in batch.columns.items()}
        return ChangedTables(tuple(tables), tuple(batches[-1].conditions), columns)

    @property
    def exit_code(self) -> int:
        return max((part.exit_code for part in (self.snapshot, self.runs) if part is not None), default=EXIT_DONE)

    def to_json(self) -> str:
        values: dict[str, Any] = {"source": self.source, "steps": [asdict(step) for step in self.steps]}
        values["snapshot"] = None if self.snapshot is None else json.loads(self.snapshot.to_json())
        values["apply"] = None if self.runs is None else json.loads(self.runs.to_json())
        return json.dumps({**values, "remarks": [*self.remarks], "exit_code": self.exit_code}, indent=2)


def print_start(summary: StartSummary, console: Console | None = None) -> None:
    """Prints the steps of a rehearsal, or the tables that were loaded and applied."""
    print_parts([f"{n}. {step.line()}" for n, step in enumerate(summary.steps, 1)], console, soft_wrap=True)
    if summary.snapshot is not None:
        print_snapshot(summary.snapshot, console)
    if summary.runs is not None:
        print_run(summary.runs, console)
    print_parts(summary.remarks, console, soft_wrap=True)

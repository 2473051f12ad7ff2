"""The checklist of an initial load and its next commands, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import counted, grid, print_parts, summary_json
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.postgres.source_server import SourceServer
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.work.snapshot.checks import OK, PROBLEM, Check, Checklist
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.steps import DEFAULT_NAME, Commands, LoadStep


@dataclass(frozen=True, slots=True)
class CheckReport:
    """steps: the remaining commands, in order."""

    source: str
    checks: tuple[Check, ...]
    steps: tuple[LoadStep, ...]

    @property
    def problems(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == PROBLEM)

    @property
    def exit_code(self) -> int:
        return EXIT_QUARANTINE if self.problems else EXIT_DONE

    def to_json(self) -> str:
        return summary_json(self)


def check_server(
    server: SourceServer, config: Config, request: SnapshotRequest, applied: CommitRange | None
) -> CheckReport:
    commands = Commands(config, request, server.version, server.is_standby)
    checklist = Checklist(server, request, applied, commands)
    checks = checklist.run()
    slot = request.slot or next((slot.name for slot in checklist.slots), DEFAULT_NAME)
    steps = [step for check in checks for step in check.steps]
    if not any(found.is_active for found in checklist.slots):
        steps.append(commands.receive(slot, checklist.publications or (DEFAULT_NAME,)))
    steps += [commands.snapshot(slot), commands.apply()]
    return CheckReport(config.source.name, checks, tuple(steps))


def print_checks(report: CheckReport, console: Console | None = None) -> None:
    problems = len(report.problems)
    verdict = "Ready: nothing is missing." if not problems else f"{counted(problems, 'problem')}."
    if any(check.loses_rows for check in report.checks):
        verdict = f"{verdict} Loading now would lose rows, and is refused."
    rows = [(_subject(check), (), [check.text]) for check in report.checks]
    table = grid("check", (), ["finding"], rows)
    print_parts([verdict, table, "Next, in this order:"], console)
    lines = [line for n, step in enumerate(report.steps, 1) for line in (f"{n}. {step.text}", f"   {step.command}")]
    print_parts(lines, console, soft_wrap=True)


def _subject(check: Check) -> str:
    return check.subject if check.status == OK else f"{check.status}: {check.subject}"

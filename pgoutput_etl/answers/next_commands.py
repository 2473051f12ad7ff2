"""The commands that resolve problems that a run reports: held tables, quarantined bytes, refused files, tables ahead.

docs/runbook.md has the same list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import counted
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.identifiers import patterns_of
from pgoutput_etl.landing.selection import HELD_FROM_HERE, LEFT_UNREAD, MISPLACED
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.postgres.connection import server_url
from pgoutput_etl.reasons import ReasonKind, kind_of
from pgoutput_etl.targets.condition import ConditionKind, TableCondition
from pgoutput_etl.targets.modes import table_mode

APPLY = ("apply",)
REDRIVE = ("backfill", "--from-quarantine")
ACCEPT_GAP = ("apply", "--set", "source.gaps=accept")


@dataclass(frozen=True, slots=True)
class NextCommand:
    """reason: the problem that the command resolves, and what to do first. command: quoted for a shell."""

    reason: str
    command: str


@dataclass(frozen=True, slots=True)
class Findings:
    """Data that a run could not apply. held: reasons by table. ahead: LSNs of snapshots by table. conditions: of
    tables; those of held tables are only in `held`. swapped: names of tables to which others seem to have been
    renamed."""

    held: Mapping[str, str]
    damages: Collection[str] = ()
    quarantined_transactions: int = 0
    refused_files: Collection[str] = ()
    commits_without_prepare: Collection[str] = ()
    ahead: Mapping[str, int] | None = None
    conditions: Collection[TableCondition] = ()
    swapped: Collection[str] = ()


def next_commands(config: Config, findings: Findings) -> tuple[NextCommand, ...]:
    """The commands, each once, in the order to run them."""
    reasons: dict[str, list[str]] = {}
    server = config.source.server_url
    for reason, job in (*_steps(findings, server), *_mending_steps(findings, server)):
        reasons.setdefault(job_line(config, *job), []).append(reason)
    return tuple(NextCommand(" ".join(parts), command) for command, parts in reasons.items())


@contextmanager
def inspected(config: Config) -> Iterator[None]:
    """Within the context, an error in landed files names the job that shows the damaged or missing data."""
    try:
        yield
    except ArchiveError as error:
        error.next_job = error.next_job or ("inspect", config.source.landing)
        raise


def next_lines(commands: Iterable[NextCommand]) -> list[str]:
    """The commands as lines for the end of a summary."""
    lines = [line for c in commands for line in (f"  {c.reason}", f"    {c.command}")]
    return ["Next:", *lines] if lines else []


def _steps(findings: Findings, server: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Reasons, each with a job and its options. server: a URL."""
    alone = {kind: tables for kind in _ALONE if (tables := _held_by(findings, kind))}
    rebuilt = len(findings.held) - sum(map(len, alone.values()))
    endings = set(map(_ending, findings.refused_files))
    if None in endings:
        yield _REFUSED, APPLY
    if findings.quarantined_transactions or any(kind_of(damage) is not ReasonKind.TORN for damage in findings.damages):
        yield _QUARANTINED, REDRIVE
    elif HELD_FROM_HERE in endings:
        yield _UNREADABLE, REDRIVE
    elif MISPLACED in endings:
        yield _MISPLACED, REDRIVE
    elif rebuilt:
        yield f"{_are(rebuilt, 'held')}: {_HELD}", REDRIVE
    if LEFT_UNREAD in endings:
        yield _LEFT_UNREAD, REDRIVE
    for kind, tables in alone.items():
        job = snapshot_of(tables, server) if kind in _LOADED_ALONE else _rebuild(tables)
        yield f"{_are(len(tables), 'held')}: {_ALONE[kind]}", job
    if findings.commits_without_prepare:
        yield _WITHOUT_PREPARE, ACCEPT_GAP
    if findings.ahead:
        last = format_lsn(max(findings.ahead.values()))
        yield f"{_are(len(findings.ahead), 'ahead')}: land the archive through LSN {last}, then run:", APPLY


def _ending(refused_file: str) -> str | None:
    """The end of a refused file's reason, if it tells what to do."""
    return next(filter(refused_file.endswith, (LEFT_UNREAD, HELD_FROM_HERE, MISPLACED)), None)


def _held_by(findings: Findings, kind: ReasonKind) -> list[str]:
    """The tables that are held for such a reason."""
    return sorted(name for name, reason in findings.held.items() if kind_of(reason) is kind)


def _mending_steps(findings: Findings, server: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Steps for tables that differ from the server's although all changes are applied."""
    if findings.swapped:
        yield _SWAPPED, snapshot_of(sorted(findings.swapped), server)
    for state, first, accept in (
        (ConditionKind.DIVERGED, "find the cause, ", _ACCEPT),
        (ConditionKind.REWRITTEN, "", ""),
    ):
        found = _in_state(findings, state)
        repairable = [condition for condition in found if condition.can_be_repaired]
        if repairable:
            repair = (*snapshot_of(_names(repairable), server), "--repair")
            yield f"{_are(len(repairable), state.value)}: {first}{_REPAIR}{accept}:", repair
        replaced = [condition for condition in found if not condition.can_be_repaired]
        if replaced:
            yield (
                f"{_are(len(replaced), state.value)}: {first}{_REPLACE}{accept}{_REPLACED}{_dropping(replaced)}",
                snapshot_of(_names(replaced), server),
            )
    if ambiguous := _in_state(findings, ConditionKind.AMBIGUOUS):
        yield f"{_are(len(ambiguous), 'ambiguous')}: {_DECLARE}", _rebuild(_names(ambiguous))
    if incomplete := _in_state(findings, ConditionKind.INCOMPLETE):
        why = f"{_are(len(incomplete), 'incomplete')}: {_EARLIER_ROWS}{_dropping(incomplete)}"
        yield why, snapshot_of(_names(incomplete), server)


def _in_state(findings: Findings, state: ConditionKind) -> list[TableCondition]:
    return [condition for condition in findings.conditions if condition.state is state]


def _names(conditions: Iterable[TableCondition]) -> list[str]:
    return sorted(condition.name for condition in conditions)


def _dropping(replaced: Iterable[TableCondition]) -> str:
    """The end of the sentence before a snapshot that replaces these tables."""
    modes = sorted({c.mode for c in replaced if not table_mode(Mode(c.mode)).is_copy})
    return f"; it drops what mode {' and '.join(modes)} kept:" if modes else ":"


def snapshot_of(tables: Iterable[str], server: str) -> tuple[str, ...]:
    """The snapshot job and its options. server: a URL, for libpq or JDBC."""
    return "snapshot", "--tables", patterns_of(tables), "--server", server_url(server)


def _rebuild(tables: Iterable[str]) -> tuple[str, ...]:
    return "backfill", "--tables", patterns_of(tables)


_REFUSED = 'Do what "Not applied" says about the file, land the next file, and run:'

_QUARANTINED = (
    "Bytes are in quarantine: replace the file with the receiver's copy, or remove it if it does not belong to the "
    "archive. Then read the archive again:"
)

_UNREADABLE = (
    "Nothing in a file can be read, and all tables are held from there on. Remove the file if no receiver wrote it, or "
    "put the receiver's copy in its place. Then read the archive again:"
)

_MISPLACED = (
    "The commits of a file do not fit between those of the other files. Decide which file is wrong, and remove it or "
    "name it in source.ignore. Then read the archive again:"
)

_HELD = (
    "repair the cause above (replace a damaged file, correct the configuration, or rename on the server), then rebuild:"
)

_LEFT_UNREAD = (
    "Tables lack the rows of a file that was left unread. Read the archive again, with the file in its place:"
)

_REPAIR = "set PGUSER and PGPASSWORD, and write the rows that differ from the server's"

_REPLACE = "set PGUSER and PGPASSWORD, and load the server's rows"

_REPLACED = ". The snapshot replaces the table"

_ACCEPT = ". `on_missing_row: ignore` accepts the table as it is"

_DECLARE = (
    "write one of the declarations above into the table's rule. If the reading was right, that is all. "
    "Otherwise rebuild:"
)

_EARLIER_ROWS = (
    "set `source.snapshot: accept` if it has no earlier rows, or you do not need them. Otherwise set PGUSER and "
    "PGPASSWORD, and load a snapshot, which replaces the table"
)

_SWAPPED = (
    "Other tables seem to be renamed to these, which nothing in the archive shows. Set PGUSER and PGPASSWORD, replace "
    "HOST and DATABASE, and load a snapshot:"
)

_WITHOUT_PREPARE = "If a file is missing, load snapshots of the tables that it changed. If none is, accept the commits:"


# Steps for tables that are rebuilt from the archive, one by one
_REBUILT_ALONE = {
    ReasonKind.NOT_UTF8: (
        "text is not UTF-8. Set `on_invalid_text: keep` in the table's rule, which keeps such values as bytes. (If the "
        "server's database is not SQL_ASCII, set PGCLIENTENCODING=UTF8 for the receiver, and load a snapshot.) Rebuild:"
    ),
    ReasonKind.UNDECLARED: "add the type to the configuration's `types`, as the reason says. Then rebuild:",
    ReasonKind.CONTRACT: (
        "columns changed, and on_schema_change waits for you. Accept the new columns, which rebuilds the table:"
    ),
    ReasonKind.SKIPPED: "the configuration no longer skips it. Rebuild it, or skip it again:",
}

# Steps for tables that a snapshot repairs
_LOADED_ALONE = {
    ReasonKind.ON_SERVER: (
        "the archive lacks values that only the server has. Set PGUSER and PGPASSWORD, replace HOST and DATABASE, and "
        "load a snapshot:"
    ),
    ReasonKind.NEW_TYPE: (
        "a column has another type, and on_schema_change waits for you. No archive shows which values ALTER TABLE … "
        "USING computed. Set PGUSER and PGPASSWORD, and accept the new columns with a snapshot, which replaces the "
        "table; or, without USING, by `backfill --tables`:"
    ),
    ReasonKind.COLUMN_NAME: (
        "rename the column on the server, or leave it out with the publication's column list. Rows in the archive keep "
        "the former name. Set PGUSER and PGPASSWORD, and load a snapshot, which replaces the table:"
    ),
}

_ALONE = {**_LOADED_ALONE, **_REBUILT_ALONE}


def _are(tables: int, status: str) -> str:
    return f"{counted(tables, 'table')} {'is' if tables == 1 else 'are'} {status}"

"""The status of a source: exit code, JSON, and text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from rich.console import Console

from pgoutput_etl.answers.next_commands import NextCommand, next_lines
from pgoutput_etl.console import counted, duration, grid, print_parts, shortened, summary_json
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.landing.selection import LEFT_UNREAD
from pgoutput_etl.lsn import format_lsn, parse_lsn
from pgoutput_etl.targets.condition import (
    ConditionKind,
    TableCondition,
    condition_lines,
    consistency_line,
    excepted_tables,
)
from pgoutput_etl.targets.drops import dropped_line

_SHOWN_LINES = 10


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """An active run. process: its process and host. since, renewed: ISO 8601."""

    batch: int
    process: str
    since: str
    renewed: str


@dataclass(frozen=True, slots=True)
class UnfinishedBatch:
    """A batch that has begun but is not done. begun: ISO 8601. is_dead: no run is working on it. erasure: the reference
    of its request, if it erases rows."""

    batch: int
    begun: str
    files: int
    is_backfill: bool
    is_dead: bool
    erasure: str | None = None


@dataclass(frozen=True, slots=True)
class WaitingFiles:
    """Landed files that no finished batch has read to the end. bytes: unread ones, as landed. oldest: ISO 8601."""

    files: int = 0
    bytes: int = 0
    oldest: str | None = None


@dataclass(frozen=True, slots=True)
class UnfinishedTransactions:
    """Transactions whose end has not landed. bytes: size of their changes, decompressed."""

    transactions: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Data that was set aside and not redriven since. bytes: decompressed. ranges: one line per unreadable range.

    refused_files: the reasons. unread_files: files that an earlier run left unread although later files were read
    since. resent_bytes: unreadable bytes that the server sent again, which need no action; not included in `bytes`.
    """

    bytes: int = 0
    transactions: int = 0
    ranges: tuple[str, ...] = ()
    refused_files: tuple[str, ...] = ()
    unread_files: tuple[str, ...] = ()
    resent_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DayTable:
    """A table after a day's batches. rows: row count, or None if unknown. Changed rows are None if no batch recorded
    them."""

    schema: str
    table: str
    rows: int | None
    inserted: int | None
    updated: int | None
    deleted: int | None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def changed(self) -> int | None:
        counts = (self.inserted, self.updated, self.deleted)
        return None if all(count is None for count in counts) else sum(count or 0 for count in counts)


@dataclass(frozen=True, slots=True)
class Day:
    """The batches that ended on one day, in UTC. seconds: by stage; empty if no batch recorded them. lag_seconds: time
    from the archive's last commit to the end of the day's last batch."""

    day: str
    batches: int
    files: int
    bytes: int
    messages: int
    seconds: dict[str, float]
    lag_seconds: float | None
    tables: tuple[DayTable, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """at: the time of the report; all times are ISO 8601. batch: the last finished one, None before the first.

    last_commit_lsn: all tables are consistent through this commit, except tables with a condition and tables that are
    ahead. ahead: by table, the LSN of a snapshot that the archive has not reached yet. complete_since: by table, the
    point from which it has all rows, such as `snapshot at 0/1AE7B70`; `first change at …` means that earlier rows are
    missing, if there were any. verified_through: by table, the last LSN at which `verify` found it equal to the
    server's. swaps: by table, why other tables seem to have been renamed to it. dropped: tables that remain although
    they were dropped on the server. next: the commands to run, most urgent first. days: recent ones with a batch,
    oldest first.
    """

    source: str
    at: str
    batch: int | None = None
    finished: str | None = None
    last_commit_lsn: int | None = None
    last_commit_time: str | None = None
    commit_age_seconds: float | None = None
    is_stale: bool = False
    tables: int = 0
    claim: ActiveRun | None = None
    unfinished: UnfinishedBatch | None = None
    waiting: WaitingFiles = WaitingFiles()
    open: UnfinishedTransactions = UnfinishedTransactions()
    quarantine: Quarantine = Quarantine()
    conditions: tuple[TableCondition, ...] = ()
    ahead: dict[str, int] = field(default_factory=dict)
    complete_since: dict[str, str] = field(default_factory=dict)
    verified_through: dict[str, str] = field(default_factory=dict)
    swaps: dict[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    next: tuple[NextCommand, ...] = ()
    days: tuple[Day, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons for an exit code other than 0, a few words each."""
        set_aside = self.quarantine
        tables = Counter(condition.state for condition in self.conditions)
        counts = (
            *((tables[state], f"table {state.value}", f"tables {state.value}") for state in ConditionKind),
            (len(set_aside.ranges), "unreadable range of bytes", "unreadable ranges of bytes"),
            (set_aside.transactions, "transaction in quarantine", "transactions in quarantine"),
            (len(set_aside.refused_files), "file refused", "files refused"),
            (len(set_aside.unread_files), "file left unread", "files left unread"),
            (len(self.swaps), "table possibly replaced", "tables possibly replaced"),
        )
        problems = [f"{count:,} {one if count == 1 else many}" for count, one, many in counts if count]
        if self.is_stale:
            problems.append("the last commit is too old")
        if self.unfinished is not None and self.unfinished.is_dead:
            problems.append(f"batch {self.unfinished.batch} was begun and not finished")
        return tuple(problems)

    @property
    def held(self) -> tuple[TableCondition, ...]:
        return tuple(condition for condition in self.conditions if condition.state is ConditionKind.HELD)

    @property
    def exit_code(self) -> int:
        return quarantine_code(self.problems)

    @property
    def lsn(self) -> str | None:
        return None if self.last_commit_lsn is None else format_lsn(self.last_commit_lsn)

    @property
    def consistency(self) -> str | None:
        """One sentence: the commit through which tables are consistent, and the tables that are not."""
        if self.last_commit_lsn is None:
            return None
        return consistency_line(self.last_commit_lsn, excepted_tables(self.conditions, self.ahead, self.swaps))

    def to_json(self) -> str:
        held = [{name: getattr(table, name) for name in ("schema", "table", "lsn", "reason")} for table in self.held]
        return summary_json(self, lsn=self.lsn, problems=self.problems, held=held)

    def seconds_since(self, time: str) -> float:
        return (datetime.fromisoformat(self.at) - datetime.fromisoformat(time)).total_seconds()


def clock(time: str) -> str:
    """A time in UTC, to the second."""
    return f"{time[:10]} {time[11:19]} UTC"


def facts(status: Status) -> list[tuple[str, str]]:
    """The known facts, as pairs of a title and a sentence without its period."""

    def ago(time: str) -> str:
        return f"{clock(time)}, {duration(status.seconds_since(time))} ago"

    facts = []
    if status.batch is not None and status.finished is not None:
        facts.append(("Last batch", f"{status.batch}, finished {ago(status.finished)}"))
    if status.last_commit_time is not None and status.lsn is not None:
        facts.append(("Last commit", f"{status.lsn}, {ago(status.last_commit_time)}"))
    if status.unfinished is not None:
        facts.append(("Unfinished batch", _unfinished(status.unfinished, ago)))
    if status.claim is not None:
        claim = status.claim
        facts.append(("Run at work", f"batch {claim.batch}, {claim.process}, since {ago(claim.since)}"))
    waiting = status.waiting
    if waiting.files and waiting.oldest is not None:
        files = f"{counted(waiting.files, 'file')}, {waiting.bytes:,} bytes; the oldest landed {ago(waiting.oldest)}"
        facts.append(("Waiting in landing", files))
    else:
        facts.append(("Waiting in landing", "nothing"))
    if status.open.transactions:
        amount = f"{counted(status.open.transactions, 'transaction')}, {status.open.bytes:,} bytes of changes"
        facts.append(("Open", amount))
    by_kind = Counter(since.partition(" at ")[0] for since in status.complete_since.values())
    if by_kind:
        kinds = ", ".join(f"{counted(n, 'table')} since {_SINCE[kind]}" for kind, n in sorted(by_kind.items()))
        facts.append(("Complete", kinds))
    if status.verified_through:
        least = format_lsn(min(map(parse_lsn, status.verified_through.values())))
        equal = counted(len(status.verified_through), "table")
        facts.append(("Found equal to the server's", f"{equal} of {status.tables:,}, through LSN {least} or later"))
    if status.quarantine.bytes:
        facts.append(("In quarantine", f"{status.quarantine.bytes:,} bytes"))
    if status.quarantine.resent_bytes:
        facts.append(("Cut off, and sent again", f"{status.quarantine.resent_bytes:,} bytes"))
    return facts


_SINCE = {
    "snapshot": "a snapshot",
    "creation": "their creation",
    "truncate": "a TRUNCATE",
    "attachment": "a change of partitions (rows that they had before are missing, or left)",
    "rewrite": "a rewrite, whose values were not sent",
    "unlogged": "a time as UNLOGGED tables (what was written then is missing)",
    "gap": "a time in no publication (what was written then is missing)",
    "first change": "the first change (earlier rows are missing, if there were any)",
}


def _unfinished(unfinished: UnfinishedBatch, ago: Callable[[str], str]) -> str:
    work = "a backfill" if unfinished.is_backfill else counted(unfinished.files, "file")
    finish = "the next run finishes it"
    if unfinished.erasure is not None:
        work, finish = f"the erasure {unfinished.erasure}", "jobs/forget.py finishes it with its request"
    end = f"; its run is dead, and {finish}" if unfinished.is_dead else ""
    return f"{unfinished.batch}, {work}, begun {ago(unfinished.begun)}{end}"


def verdict(status: Status) -> str:
    if status.problems:
        return "; ".join(status.problems)
    return "nothing applied yet" if status.batch is None else "nothing is held or in quarantine"


def print_status(status: Status, console: Console | None = None) -> None:
    """Prints the verdict and the facts that it is based on."""
    rows = [(table.name, (format_lsn(table.lsn),), (table.reason,)) for table in status.held]
    lines = [f"{status.source}: {verdict(status)}."]
    lines += [f"{title}: {text}." for title, text in facts(status)]
    lines += condition_lines(status.conditions)
    set_aside = status.quarantine
    lines += shortened([f"In quarantine: {line}" for line in set_aside.ranges], _SHOWN_LINES, "ranges")
    lines += shortened([f"Not applied: {line}" for line in set_aside.refused_files], _SHOWN_LINES, "files")
    lines += shortened([f"Not applied: {path}{LEFT_UNREAD}" for path in set_aside.unread_files], _SHOWN_LINES, "files")
    lines += [f"Possibly replaced: {swap}." for swap in status.swaps.values()]
    lines += dropped_line(status.dropped)
    lines += filter(None, [status.consistency])
    table = grid("held table", ("complete through",), ("reason",), rows)
    print_parts([*lines, table], console)
    print_parts(next_lines(status.next), console, soft_wrap=True)

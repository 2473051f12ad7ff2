"""The result of the forget job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgoutput_etl.answers.command_line import seen_from_here
from pgoutput_etl.console import counted, grid, print_parts, summary_json
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.load.summary import NO_CHANGES, ChangedTables

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class ForgottenTable:
    """name: schema.table. changes: number in landed files, of all transactions. rows: number in the target. None if a
    run that died has already erased them."""

    name: str
    changes: int | None
    rows: int | None


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """before, after: SHA-256 of the stored file."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class OtherKeys:
    """Keys of chosen rows that the request doesn't name. file: where they are. counts: by the table's name."""

    file: str
    counts: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        counts = ", ".join(f"{number:,} of {name}" for name, number in self.counts)
        return f"{counts}: {self.file}"


@dataclass(frozen=True, slots=True)
class ForgetSummary:
    """executed: False if nothing was changed. batch: its number in the ledger; 0 if nothing was changed. messages:
    number of logical decoding Messages. copies: number of ledger rows with a copy of a change. left: what the job can't
    erase. unseen: names of tables for which the archive no longer shows every version of the columns. newest: the
    newest landed file, if it is rewritten: a receiver may still have it open. snapshot_rows: number in snapshot files.
    other_keys: None if the request names all keys, or if a dead run had removed too much to find them. changed: the
    request's tables."""

    source: str
    reference: str
    executed: bool
    batch: int
    tables: tuple[ForgottenTable, ...]
    files: tuple[RewrittenFile, ...]
    messages: int = 0
    copies: int = 0
    left: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    newest: str | None = None
    snapshot_rows: int = 0
    other_keys: OtherKeys | None = None
    changed: ChangedTables = NO_CHANGES

    @property
    def exit_code(self) -> int:
        return EXIT_QUARANTINE if self.executed and (self.left or self.other_keys) else EXIT_DONE

    def to_json(self) -> str:
        return summary_json(self)


@dataclass(frozen=True, slots=True)
class Remnant:
    """Something that should have been erased. place: a file or a table. what: the part of the request, without its
    value."""

    place: str
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class ProvenTable:
    """differences: number of rows that only the target or only the replayed archive has; None if the replay starts from
    the target itself, because its rows came from a snapshot."""

    name: str
    differences: int | None


@dataclass(frozen=True, slots=True)
class ProofSummary:
    """files, size: number of files searched, and their stored bytes. texts: number of texts searched for. other_keys:
    keys of the rows found."""

    source: str
    reference: str
    files: int
    size: int
    texts: int
    tables: tuple[ProvenTable, ...]
    remnants: tuple[Remnant, ...] = ()
    left: tuple[str, ...] = ()
    other_keys: OtherKeys | None = None

    @property
    def changed(self) -> ChangedTables:
        return NO_CHANGES

    @property
    def exit_code(self) -> int:
        is_proven = not self.remnants and not any(table.differences for table in self.tables) and not self.left
        return EXIT_DONE if is_proven else EXIT_QUARANTINE

    def to_json(self) -> str:
        return summary_json(self)


def print_forget(summary: ForgetSummary | ProofSummary, console: Console | None = None) -> None:
    """console: None for standard output."""
    if isinstance(summary, ProofSummary):
        _print_proof(summary, console)
        return
    did = "erased from" if summary.executed else "would be erased from"
    rows = [(t.name, tuple("?" if n is None else n for n in (t.changes, t.rows)), ()) for t in summary.tables]
    title = f"Erasure {summary.reference} of {summary.source}: {did} {counted(len(summary.files), 'file')}"
    table = grid("table", ("changes", "rows"), (), rows)
    others = [counted(summary.messages, "Message"), counted(summary.copies, "row") + " of the ledger"]
    if summary.snapshot_rows:
        others.insert(0, f"{counted(summary.snapshot_rows, 'row')} of snapshots' files")
    unseen = [f"No other change shows a form that the columns of {name} had: docs/forget.md" for name in summary.unseen]
    print_parts(
        [title, table, f"Also {', '.join(others)}", *unseen, *_left(summary.left), *_others(summary.other_keys)],
        console,
    )
    if not summary.executed:
        if summary.newest is not None:
            newest = seen_from_here(summary.newest)
            print_parts([f"The newest file is rewritten, too: no receiver may have it open: {newest}"], console)
        print_parts(["Nothing was changed: --execute erases"], console)


def _print_proof(summary: ProofSummary, console: Console | None) -> None:
    searched = f"{counted(summary.files, 'file')}, {counted(summary.size, 'byte')}"
    title = f"Proof of erasure {summary.reference} of {summary.source}: {counted(summary.texts, 'text')} in {searched}"
    rows = [(t.name, ("from the target" if t.differences is None else t.differences,), ()) for t in summary.tables]
    table = grid("table", ("differences from the archive",), (), rows)
    found = [f"Found: {r.what}: {r.place}: {r.count:,}" for r in summary.remnants] or ["Nothing was found"]
    print_parts([title, table, *found, *_left(summary.left), *_others(summary.other_keys)], console)


def _left(left: tuple[str, ...]) -> list[str]:
    return [f"Not erased: {text}" for text in left]


def _others(keys: OtherKeys | None) -> list[str]:
    text = f"Other keys of these rows, which the request does not name: {keys}. Add them, and run again"
    return [] if keys is None else [text]

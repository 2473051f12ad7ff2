"""Prints a file's messages, one per line: position, transaction, and content. Cell values only on request."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pgoutput_etl.compression import MAX_SIZE, read_content
from pgoutput_etl.console import counted
from pgoutput_etl.errors import ArchiveError, without_offset
from pgoutput_etl.identifiers import is_chosen, printable
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol import messages as m
from pgoutput_etl.protocol.framing import Frame, Framing
from pgoutput_etl.scan.message_row import HEAD, NO_FRAGMENT
from pgoutput_etl.scan.request import ScanRequest
from pgoutput_etl.scan.salvage import Gap
from pgoutput_etl.scan.scanner import Scanner
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.timestamps import time_of
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus
from pgoutput_etl.types import UserTypes, type_of

_OUTSIDE_FRAGMENTS = m.StreamCommit | m.StreamAbort | m.StreamPrepare | m.CommitPrepared | m.RollbackPrepared

_WORD = re.compile(r"(?<=[a-z])([A-Z])")  # where the protocol's names of messages have a space


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """The messages to print; None accepts any. tables: shell patterns for schema.table. xid: of the transaction or
    subtransaction. times: first and last commit time, in microseconds since 2000-01-01 UTC. names: a regular expression
    to search for in the message's names."""

    tables: tuple[str, ...] = ()
    xid: int | None = None
    first_lsn: int | None = None
    last_lsn: int | None = None
    first_time: int | None = None
    last_time: int | None = None
    names: str | None = None

    def accepts(self, line: MessageLine) -> bool:
        if self.tables and not any(is_chosen(name, self.tables) for name in line.tables):
            return False
        if self.xid is not None and self.xid not in (line.xid, line.subxid):
            return False
        if not _within(line.position, self.first_lsn, self.last_lsn):
            return False
        if not _within(line.committed_at, self.first_time, self.last_time):
            return False
        return self.names is None or any(re.search(self.names, name) for name in line.names)


def as_lsn(lsn: int | None) -> str | None:
    return None if lsn is None else format_lsn(lsn)


def as_time(microseconds: int | None) -> str | None:
    """Microseconds since 2000-01-01 UTC as ISO 8601."""
    return None if microseconds is None else time_of(microseconds).isoformat(" ")


def _within(value: int | None, first: int | None, last: int | None) -> bool:
    if first is None and last is None:
        return True
    return value is not None and (first is None or value >= first) and (last is None or value <= last)


@dataclass(slots=True)
class MessageLine:
    """One message. position: its LSN if the framing has LSNs, otherwise its transaction's commit LSN. fate: the status
    of the transaction, if known. values: texts by kind of tuple and column; empty unless requested."""

    path: str
    offset: int
    lsn: int | None
    xid: int | None
    subxid: int | None
    kind: str
    what: str
    fate: str | None = None
    tables: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    commit_lsn: int | None = None
    committed_at: int | None = None
    values: dict[str, dict[str, str | None]] = field(default_factory=dict)

    @property
    def position(self) -> int | None:
        return self.commit_lsn if self.lsn is None else self.lsn

    def text(self) -> str:
        lsn = "-" if self.lsn is None else format_lsn(self.lsn)
        xid = "-" if self.xid is None else f"{self.xid}"
        xid += "" if self.subxid in (None, self.xid) else f"/{self.subxid}"
        status = "" if self.fate in (None, TransactionStatus.COMMITTED.value) else f"  [{self.fate}]"
        rows = "".join(f"  {kind} {_row(values)}" for kind, values in self.values.items())
        return printable(f"{self.path}  {self.offset:>10}  {lsn:>12}  {xid:>10}  {self.what}{rows}{status}")

    def json(self) -> str:
        lsns = {"lsn": as_lsn(self.lsn), "commit_lsn": as_lsn(self.commit_lsn)}
        return json.dumps({**asdict(self), **lsns, "committed_at": as_time(self.committed_at)})


def _row(values: Mapping[str, str | None]) -> str:
    return "(" + ", ".join(f"{name}={'NULL' if text is None else repr(text)}" for name, text in values.items()) + ")"


@dataclass(frozen=True, slots=True)
class InspectionContext:
    """Everything needed to print a file's messages. outcomes: by fragment; watermarks: by epoch; versions: by relation
    OID. Its size doesn't grow with the file, because it is sent to other processes."""

    path: str
    file: int
    framing: Framing
    begins_in_stream: bool
    end: int
    outcomes: Mapping[int, Outcome]
    watermarks: Mapping[int, int]
    versions: Mapping[int, RelationVersions]
    user_types: UserTypes
    filter: MessageFilter
    shows_values: bool
    as_json: bool


def print_messages(
    context: InspectionContext, content: bytes, emit: Callable[[str], object], max_size: int = MAX_SIZE
) -> None:
    """Emits the text of each accepted line."""
    print_lines(context, content, lambda line: emit(line.json() if context.as_json else line.text()), max_size)


def print_lines(
    context: InspectionContext, content: bytes, emit: Callable[[MessageLine], object], max_size: int = MAX_SIZE
) -> None:
    """Emits each accepted line, and one line for each unreadable part."""
    printer: MessagePrinter | None = None
    try:
        data = read_content(content, context.path, max_size).data[: context.end]
        if context.framing is Framing.AUTO:
            return  # an empty file
        printer = MessagePrinter(context, data, emit)
        printer.run()
    except ArchiveError as error:
        offset = 0 if printer is None else printer.offset
        emit(MessageLine(context.path, offset, None, None, None, "Damage", f"can't be read from here on: {error}"))


def vanished_file_line(context: InspectionContext) -> str:
    """The line for a file that was readable when it was scanned."""
    line = MessageLine(context.path, 0, None, None, None, "Damage", "can no longer be read")
    return line.json() if context.as_json else line.text()


class MessagePrinter(Scanner):
    """Reads a file as the scan does, message by message, but makes no rows."""

    def __init__(self, context: InspectionContext, data: bytes, emit: Callable[[MessageLine], object]) -> None:
        request = ScanRequest(data, context.file, context.framing, salvages=True, leaves_tail=True)
        super().__init__(request, context.begins_in_stream, is_certain=True)
        self.context = context
        self.emit = emit

    def _fast_reader(self) -> None:
        """Returns no fast reader, so every message is decoded separately."""

    def append_row(self, *_: object, **__: object) -> None:
        """Does nothing, because only message lines are needed."""

    def _message(self, message: m.PgoutputMessage, frame: Frame) -> None:
        before = self.fragment
        super()._message(message, frame)
        fragment = None if isinstance(message, _OUTSIDE_FRAGMENTS) else self.fragment or before
        lsn = frame.lsn or None  # 0 for messages without a position in the WAL
        self._emit(self._line(message, frame.offset, lsn, NO_FRAGMENT if fragment is None else fragment.number))

    def _damage(self, gap: Gap) -> None:
        super()._damage(gap)
        what = f"{counted(gap.end - gap.offset, 'byte')} that can't be read: {without_offset(gap.reason)}"
        self._emit(MessageLine(self.context.path, gap.offset, None, None, None, "Damage", what))

    def _emit(self, line: MessageLine) -> None:
        if self.context.filter.accepts(line):
            self.emit(line)

    def _line(self, message: m.PgoutputMessage, offset: int, lsn: int | None, fragment: int) -> MessageLine:
        line = MessageLine(self.context.path, offset, lsn, None, None, type(message).__name__, "")
        self._set_transaction(line, message, fragment)
        position, outcome = (self.context.file, self.ordinal), self.context.outcomes.get(fragment)
        MessageDescription(self.context, line, position, outcome).describe(message)
        return line

    def _set_transaction(self, line: MessageLine, message: m.PgoutputMessage, number: int) -> None:
        outcome = self.context.outcomes.get(number)
        fragment = self.fragment
        line.subxid = getattr(message, "subxid", getattr(message, "xid", None))
        if isinstance(message, m.Message) and not message.transactional:
            return
        if outcome is not None:
            line.xid, line.commit_lsn, line.committed_at = outcome.xid, outcome.commit_lsn, outcome.commit_ts
            is_aborted = line.subxid in outcome.aborted_subxids
            line.fate = TransactionStatus.ABORTED.value if is_aborted else outcome.status.value
        elif number not in (NO_FRAGMENT, HEAD):
            known = fragment if fragment is not None and fragment.number == number else self._ended_fragment
            if known is not None:
                line.xid, line.commit_lsn, line.committed_at = known.xid, known.commit_lsn, known.commit_ts
                watermark = self.context.watermarks.get(len(self.summary.epochs) - 1, -1)
                is_new = known.commit_lsn is None or known.commit_lsn > watermark
                line.fate = TransactionStatus.COMMITTED.value if is_new else TransactionStatus.RESENT.value
        if line.xid is None:
            line.xid = getattr(message, "xid", None)
        if line.commit_lsn is None and line.fate != TransactionStatus.OPEN.value:
            line.commit_lsn = getattr(message, "commit_lsn", None)
            line.committed_at = getattr(message, "commit_timestamp", None)

    def _commit(self, message: m.Commit, frame: Frame) -> None:
        self._ended_fragment = self.fragment
        super()._commit(message, frame)

    _ended_fragment: Any = None


@dataclass(slots=True)
class MessageDescription:
    """Describes a message in its line."""

    context: InspectionContext
    line: MessageLine
    position: tuple[int, int]
    outcome: Outcome | None

    def describe(self, message: m.PgoutputMessage) -> None:
        match message:
            case m.Insert() | m.Update() | m.Delete() | m.Truncate():
                self._change(message)
            case m.Relation():
                self._relation(message)
            case m.Type():
                self._named(f"Type {message.oid} is {message.namespace}.{message.name}", message.name)
            case m.Origin():
                self._named(f"Origin {message.name}, committed there at {format_lsn(message.commit_lsn)}", message.name)
            case m.Message():
                self._logical(message)
            case _:
                self._transaction(message)

    def _named(self, what: str, *names: str) -> None:
        self.line.what, self.line.names = what, names

    def _transaction(self, message: m.PgoutputMessage) -> None:
        what, gid = _WORD.sub(r" \1", type(message).__name__), getattr(message, "gid", None)
        self.line.names = () if gid is None else (gid,)
        match message:
            case m.Begin():
                what += f", commit at {format_lsn(message.final_lsn)}, {as_time(message.commit_timestamp)}"
                self.line.commit_lsn, self.line.committed_at = message.final_lsn, message.commit_timestamp
            case m.Commit() | m.StreamCommit():
                what += f" at {format_lsn(message.commit_lsn)}, {as_time(message.commit_timestamp)}"
            case m.StreamStart():
                what += ", first segment" if message.first_segment else ""
            case m.StreamAbort():
                what += "" if message.subxid == message.xid else f" of subtransaction {message.subxid}"
            case m.CommitPrepared():
                what += f" {gid} at {format_lsn(message.commit_lsn)}"
            case m.BeginPrepare() | m.Prepare() | m.StreamPrepare():
                what += f" {gid} at {format_lsn(message.prepare_lsn)}"
            case m.RollbackPrepared():
                what += f" {gid}"
            case _:
                pass
        self.line.what = what

    def _relation(self, message: m.Relation) -> None:
        name = message.full_name
        types = self.context.user_types
        columns = ", ".join(f"{c.name} {type_of(c, types).name}{' key' if c.is_key else ''}" for c in message.columns)
        identity = message.replica_identity.name.lower()
        what = f"Relation {message.oid} is {name} ({columns}), replica identity {identity}"
        self._named(what, name, *(c.name for c in message.columns))
        self.line.tables = (name,)

    def _logical(self, message: m.Message) -> None:
        kind = "transactional" if message.transactional else "not transactional"
        what = f"Message {message.prefix!r}, {kind}, {counted(len(message.content), 'byte')}"
        self._named(what, message.prefix)
        if self.context.shows_values:
            self.line.values["content"] = {"content": utf8_or_hex(message.content)}

    def _change(self, message: m.Insert | m.Update | m.Delete | m.Truncate) -> None:
        oids = message.relation_oids if isinstance(message, m.Truncate) else (message.relation_oid,)
        relations = [self._relation_of(oid) for oid in oids]
        tables = tuple(
            f"OID {oid}" if relation is None else relation.full_name
            for oid, relation in zip(oids, relations, strict=True)
        )
        self.line.tables = self.line.names = tables
        self.line.names += tuple(c.name for r in relations if r is not None for c in r.columns)
        self.line.what = f"{type(message).__name__} {', '.join(tables)}"
        if isinstance(message, m.Truncate):
            self.line.what += " cascade" if message.options & m.TruncateOption.CASCADE else ""
            self.line.what += " restart identity" if message.options & m.TruncateOption.RESTART_IDENTITY else ""
            return
        old_kind = getattr(message, "old_kind", None)
        for kind in ("old", "new"):
            data = getattr(message, kind, None)
            if data is not None:
                is_key = kind == "old" and old_kind is not None and old_kind.value == "K"
                self._tuple("key" if is_key else kind, data, relations[0], is_key)

    def _relation_of(self, oid: int) -> m.Relation | None:
        versions = self.context.versions.get(oid)
        if versions is None:
            return None
        number = versions.at(self.position, None if self.outcome is None else self.outcome.scope)
        return None if number is None else versions.relations[number]

    def _tuple(self, kind: str, data: m.TupleData, relation: m.Relation | None, is_key: bool) -> None:
        names = [f"column {i + 1}" for i in range(len(data.kinds))]
        if relation is not None and len(relation.columns) == len(names):
            names = [column.name for column in relation.columns]
        sent = [
            i for i, k in enumerate(data.kinds) if k != m.KIND_UNCHANGED and not (is_key and data.values[i] is None)
        ]
        unchanged = [names[i] for i, k in enumerate(data.kinds) if k == m.KIND_UNCHANGED]
        if self.context.shows_values:
            self.line.values[kind] = {
                names[i]: None if (value := data.values[i]) is None else _shown(data.kinds[i], value) for i in sent
            }
        else:
            self.line.what += f"  {kind} ({', '.join(names[i] for i in sent)})"
        if unchanged:
            self.line.what += f"  unchanged ({', '.join(unchanged)})"


def _shown(kind: int, value: bytes) -> str:
    return f"\\x{value.hex()}" if kind == m.KIND_BINARY else utf8_or_hex(value)


def utf8_or_hex(value: bytes) -> str:
    """PostgreSQL's text, or its bytes as hexadecimal digits if it isn't UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"\\x{value.hex()}"

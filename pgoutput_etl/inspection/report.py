"""An archive's inspection as figures: what is printed, and what `--json` has. LSNs and times are text here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.inspection.file_scan import BIGGEST, FragmentTotals
from pgoutput_etl.inspection.message_lines import as_time
from pgoutput_etl.inspection.report_model import (
    ArchiveReport,
    ColumnReport,
    FileReport,
    RelationReport,
    TransactionReport,
    VersionReport,
)
from pgoutput_etl.inspection.server_settings import FORMAT
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.relation_history import RelationEntry
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus
from pgoutput_etl.types import UserTypes, column_type

_STREAMED, _PREPARED = frozenset("SEc"), frozenset("bPKr")


def report_on(found: Inspection) -> ArchiveReport:
    scans = found.scans
    noted, messages = found.census(), found.messages()
    framings = {scan.framing for scan in scans.values() if scan.messages}
    commits = [each for scan in scans.values() for each in scan.epochs if each is not None]
    commits += [(o.commit_lsn, o.commit_lsn) for o in found.assembled.ended if o.commit_lsn is not None]
    seen = [lsn for scan in scans.values() for lsn in (scan.first_lsn, scan.last_lsn) if lsn is not None]
    times = [
        o.commit_ts
        for o in found.assembled.ended
        if o.commit_ts is not None and o.status is TransactionStatus.COMMITTED
    ]
    times += found.total.times or ()
    settings: dict[str, dict[str, int]] = {}
    for (setting, value), count in sorted(found.settings().items()):
        settings.setdefault(setting, {})[value] = count
    accounts = found.accounts()
    is_binary = "binary" in settings.get(FORMAT, {})
    parallel = noted.is_parallel
    return ArchiveReport(
        files=tuple(_files(found)),
        bytes=sum(file.size for file in found.landed),
        content_bytes=found.content_bytes(),
        framings=tuple(sorted(framings)),
        messages=dict(sorted(messages.items())),
        protocol=_protocol(messages, parallel),
        server=_server(messages, parallel, is_binary),
        settings=settings,
        first_lsn=_lsn(min(seen, default=None)),
        last_lsn=_lsn(max(seen, default=None)),
        first_commit_lsn=_lsn(min((first for first, _ in commits), default=None)),
        last_commit_lsn=_lsn(max((last for _, last in commits), default=None)),
        first_commit_time=as_time(min(times, default=None)),
        last_commit_time=as_time(max(times, default=None)),
        transactions={status.value: found.transactions()[status.value] for status in TransactionStatus},
        unknown_prepared=found.assembled.unknown_prepared,
        sizes=_sizes(found),
        biggest=tuple(_biggest(found)),
        open=tuple(transaction_report(found, outcome) for outcome in found.assembled.open),
        relations=tuple(_relations(found)),
        types={str(oid): f"{t.namespace}.{t.name}" for oid, t in sorted(found.assembled.assembly.types.items())},
        origins=dict(noted.origins.most_common()),
        prefixes={prefix: asdict(count) for prefix, count in sorted(noted.prefixes.items())},
        accounts={name: accounts[name] for name in sorted(accounts) if accounts[name]},
        damages=tuple(_damages(found)),
        unreadable=tuple(found.errors.values()),
        gaps=tuple(_gaps(found)),
        remarks=tuple(_remarks(found)),
        is_damaged=found.is_damaged,
    )


def _lsn(lsn: int | None) -> str | None:
    return None if lsn is None else format_lsn(lsn)


def _protocol(messages: Counter[str], parallel: bool) -> str:
    if not messages:
        return "unknown"
    if parallel:
        return "4"
    if not _PREPARED.isdisjoint(messages) or "p" in messages:
        return "3 or newer"
    if not _STREAMED.isdisjoint(messages):
        return "2 or newer"
    return "1, or a newer one of which nothing was used"


def _server(messages: Counter[str], parallel: bool, is_binary: bool) -> str:
    if not messages:
        return "unknown"
    least = 10
    if messages["T"]:
        least = 11
    if messages["M"] or is_binary or not _STREAMED.isdisjoint(messages):
        least = 14
    if not _PREPARED.isdisjoint(messages) or messages["p"]:
        least = 15
    if parallel:
        least = 16
    if messages["A"] and _STREAMED.isdisjoint(messages):
        least = 18
    return f"PostgreSQL {least} or newer"


def _files(found: Inspection) -> Iterable[FileReport]:
    numbers = {path: number for number, path in found.paths.items()}
    parts = {part.path: part for part in found.selection.parts.values()}
    for file in found.landed:
        number = numbers.get(file.path)
        scan = None if number is None or number not in found.inspections else found.inspections[number].scan
        status = _status(file.path, parts.get(file.path), found)
        content = found.sizes.get(file.path)
        if scan is None:
            yield FileReport(file.path, status, file.size, content)
            continue
        commits = [each for each in scan.epochs if each is not None]
        yield FileReport(
            file.path,
            status,
            file.size,
            content,
            scan.framing,
            dict(sorted(scan.messages.items())),
            _lsn(scan.first_lsn),
            _lsn(scan.last_lsn),
            _lsn(min((first for first, _ in commits), default=None)),
            _lsn(max((last for _, last in commits), default=None)),
            len(scan.epochs) - 1,
            scan.tail,
        )


def _status(path: str, part: FilePart | None, found: Inspection) -> str:
    if path in found.errors:
        return "unreadable"
    if part is None:
        return "left"
    return "duplicate" if part.status == FileStatus.DUPLICATE.value else "read"


def _size_of(found: Inspection, outcome: Outcome) -> tuple[int, int]:
    """Changes and bytes; without changes of subtransactions that were aborted, unless all of it was."""
    totals = [found.total.own_fragments.get(fragment, FragmentTotals()) for fragment in outcome.fragments]
    aborted = 0 if outcome.status is TransactionStatus.ABORTED else sum(fragment.aborted for fragment in totals)
    return sum(fragment.changes for fragment in totals) - aborted, sum(fragment.size for fragment in totals)


def kind_of_transaction(outcome: Outcome) -> str:
    return "prepared" if outcome.gid is not None else "streamed" if outcome.scope is not None else "ordinary"


def transaction_report(found: Inspection, outcome: Outcome) -> TransactionReport:
    changes, size = _size_of(found, outcome)
    return TransactionReport(
        outcome.xid,
        kind_of_transaction(outcome),
        outcome.status.value,
        changes,
        size,
        outcome.gid,
        found.paths.get(outcome.fragments[0][0], "") if outcome.fragments else "",
        _lsn(outcome.commit_lsn),
        as_time(outcome.commit_ts),
        len(outcome.aborted_subxids),
    )


def _biggest(found: Inspection) -> list[TransactionReport]:
    others = [transaction_report(found, outcome) for outcome in (*found.assembled.ended, *found.assembled.open)]
    ordinary = [
        TransactionReport(
            each.xid,
            "ordinary",
            each.status,
            each.changes,
            each.size,
            None,
            found.paths.get(each.file, ""),
            _lsn(each.commit_lsn),
            as_time(each.commit_ts),
        )
        for each in found.total.biggest
    ]
    return sorted([*others, *ordinary], key=lambda t: -t.size)[:BIGGEST]


def _sizes(found: Inspection) -> dict[str, int]:
    digits = Counter(found.total.digits)
    for outcome in found.assembled.ended:
        if outcome.status is TransactionStatus.COMMITTED:
            changes, _ = _size_of(found, outcome)
            digits[len(str(changes)) if changes else 0] += 1
    return {_class(n): count for n, count in sorted(digits.items()) if count}


def _class(digits: int) -> str:
    return "0" if digits == 0 else f"{10 ** (digits - 1)}-{10**digits - 1}"


def _relations(found: Inspection) -> Iterable[RelationReport]:
    history = found.assembled.assembly.relations
    user_types = UserTypes.of(found.assembled.assembly.types.values(), {})
    entries: dict[int, list[RelationEntry]] = {}
    for entry in history.entries:
        entries.setdefault(entry.relation.oid, []).append(entry)
    changed: dict[int, Counter[str]] = {}
    others: dict[int, Counter[str]] = {}
    for (oid, tag, status), count in found.total.changes.items():
        is_committed = status == TransactionStatus.COMMITTED.value
        (changed if is_committed else others).setdefault(oid, Counter())[tag if is_committed else status] += count
    for oid in sorted({*entries, *changed, *others}):
        latest = history.newest(oid)
        yield RelationReport(
            oid,
            None if latest is None else latest.namespace,
            None if latest is None else latest.name,
            tuple(_version(found, entry, user_types) for entry in _distinct(entries.get(oid, []))),
            {tag: changed.get(oid, Counter())[tag] for tag in "IUDT"},
            dict(sorted(others.get(oid, Counter()).items())),
        )


def _distinct(entries: Iterable[RelationEntry]) -> list[RelationEntry]:
    """Each description once, where it first held."""
    first: dict[Relation, RelationEntry] = {}
    for entry in sorted(entries, key=lambda e: e.position):
        first.setdefault(entry.relation, entry)
    return list(first.values())


def _version(found: Inspection, entry: RelationEntry, user_types: UserTypes) -> VersionReport:
    relation, (file, ordinal) = entry.relation, entry.position
    columns = tuple(
        ColumnReport(c.name, column_type(c.type_oid, c.type_modifier, user_types).name, c.is_key)
        for c in relation.columns
    )
    return VersionReport(
        relation.namespace,
        relation.name,
        relation.replica_identity.name.lower(),
        columns,
        found.paths.get(file, ""),
        ordinal,
        entry.scope is not None,
    )


def _damages(found: Inspection) -> list[str]:
    return [
        f"{found.paths[number]}: {damage.size:,} bytes at offset {damage.offset:,}: {damage.reason}"
        + ("; cut off in the middle by a receiver that died" if damage.is_torn else "")
        for number, scan in sorted(found.scans.items())
        for damage in scan.damages
    ]


def _gaps(found: Inspection) -> list[str]:
    lines = [*found.missing]
    for each in found.assembled.breaks:
        if not each.is_beginning or each.is_excluded:
            left = "; nothing of it is counted" if each.is_excluded else ""
            lines.append(f"{found.paths[each.file]}: {each.reason}{left}")
    return lines


def _remarks(found: Inspection) -> list[str]:
    lines = [
        f"{found.paths[each.file]}: begins in the middle of an archive: {each.reason}"
        for each in found.assembled.breaks
        if each.is_beginning and not each.is_excluded
    ]
    lines += [
        f"{part.path}: the same content as {found.paths.get(part.same_as or 0, 'another')}"
        for part in found.selection.with_status(FileStatus.DUPLICATE).values()
    ]
    for number, scan in sorted(found.scans.items()):
        if scan.tail is not None:
            lines.append(f"{found.paths[number]}: what follows offset {scan.consumed:,} is not whole yet: {scan.tail}")
    return [*lines, *found.remarks]

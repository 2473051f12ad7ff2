"""Builds the report of an inspection. LSNs and times are text."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, replace

from pgoutput_etl.console import counted
from pgoutput_etl.errors import without_offset
from pgoutput_etl.inspection.archive import Inspection
from pgoutput_etl.inspection.file_scan import BIGGEST, FragmentTotals
from pgoutput_etl.inspection.float_digits import rounding_remark
from pgoutput_etl.inspection.message_lines import as_lsn, as_time
from pgoutput_etl.inspection.report_model import (
    ArchiveReport,
    ColumnReport,
    FileReport,
    RelationReport,
    TransactionReport,
    VersionReport,
)
from pgoutput_etl.inspection.server_settings import FORMAT, ROUNDED
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.relation_history import RelationEntry
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus
from pgoutput_etl.types import UserTypes, type_of

_STREAMED, _PREPARED = frozenset("SEc"), frozenset("bPKrp")


def report_on(inspection: Inspection) -> ArchiveReport:
    scans = inspection.scans
    census, messages = inspection.census(), inspection.messages()
    framings = {scan.framing for scan in scans.values() if scan.messages}
    commits = [lsn for scan in scans.values() for lsn in scan.commits if lsn is not None]
    commits += [outcome.commit_lsn for outcome in inspection.assembled.ended if outcome.commit_lsn is not None]
    lsns = [lsn for scan in scans.values() for lsn in (scan.first_lsn, scan.last_lsn) if lsn is not None]
    times = [
        o.commit_ts
        for o in inspection.assembled.ended
        if o.commit_ts is not None and o.status is TransactionStatus.COMMITTED
    ]
    times += inspection.total.times or ()
    settings: dict[str, dict[str, int]] = {}
    for (setting, value), count in sorted(inspection.settings().items()):
        settings.setdefault(setting, {})[value] = count
    accounts, transactions = inspection.accounts(), inspection.transactions()
    is_binary, is_parallel = "binary" in settings.get(FORMAT, {}), census.is_parallel
    return ArchiveReport(
        files=tuple(_files(inspection)),
        bytes=sum(file.size for file in inspection.landed),
        content_bytes=inspection.content_bytes(),
        framings=tuple(sorted(framings)),
        messages=dict(sorted(messages.items())),
        protocol=_protocol(messages, is_parallel),
        server=_server(messages, is_parallel, is_binary),
        settings=settings,
        first_lsn=as_lsn(min(lsns, default=None)),
        last_lsn=as_lsn(max(lsns, default=None)),
        first_commit_lsn=as_lsn(min(commits, default=None)),
        last_commit_lsn=as_lsn(max(commits, default=None)),
        first_commit_time=as_time(min(times, default=None)),
        last_commit_time=as_time(max(times, default=None)),
        transactions={status.value: transactions[status.value] for status in TransactionStatus},
        unknown_prepared=inspection.assembled.unknown_prepared,
        sizes=_sizes(inspection),
        biggest=tuple(_biggest(inspection)),
        open=tuple(transaction_report(inspection, outcome) for outcome in inspection.assembled.open),
        relations=tuple(_relations(inspection)),
        types={str(oid): f"{t.namespace}.{t.name}" for oid, t in sorted(inspection.assembled.assembly.types.items())},
        origins=dict(census.origins.most_common()),
        prefixes={prefix: asdict(count) for prefix, count in sorted(census.prefixes.items())},
        accounts={name: accounts[name] for name in sorted(accounts) if accounts[name]},
        damages=tuple(_damages(inspection)),
        unreadable=tuple(inspection.errors.values()),
        gaps=tuple(_gaps(inspection)),
        remarks=tuple(_remarks(inspection)),
        is_damaged=inspection.is_damaged,
    )


def _protocol(messages: Counter[str], is_parallel: bool) -> str:
    if not messages:
        return "unknown"
    if is_parallel:
        return "4"
    if not _PREPARED.isdisjoint(messages):
        return "3 or newer"
    if not _STREAMED.isdisjoint(messages):
        return "2 or newer"
    return "1, or a newer one without its features in use"


def _server(messages: Counter[str], is_parallel: bool, is_binary: bool) -> str:
    if not messages:
        return "unknown"
    is_streamed = not _STREAMED.isdisjoint(messages)
    features = {
        11: messages["T"] > 0,
        14: messages["M"] > 0 or is_binary or is_streamed,
        15: not _PREPARED.isdisjoint(messages),
        16: is_parallel,
        18: messages["A"] > 0 and not is_streamed,
    }
    return f"PostgreSQL {max((version for version, is_used in features.items() if is_used), default=10)} or newer"


def _files(inspection: Inspection) -> Iterable[FileReport]:
    scans = {inspection.paths[number]: scan for number, scan in inspection.scans.items()}
    parts = {part.path: part for part in inspection.selection.parts.values()}
    for file in inspection.landed:
        scan = scans.get(file.path)
        status = _status(file.path, parts.get(file.path), inspection)
        listed = (file.path, status, file.size, inspection.sizes.get(file.path))
        if scan is None:
            yield FileReport(*listed)
            continue
        messages = dict(sorted(scan.messages.items()))
        first_commit, last_commit = scan.commits
        lsns = (as_lsn(scan.first_lsn), as_lsn(scan.last_lsn), as_lsn(first_commit), as_lsn(last_commit))
        yield FileReport(*listed, scan.framing, messages, *lsns, len(scan.epochs) - 1, scan.tail)


def _status(path: str, part: FilePart | None, inspection: Inspection) -> str:
    if path in inspection.errors:
        return "unreadable"
    if part is None:
        return "left"
    return "duplicate" if part.status == FileStatus.DUPLICATE.value else "read"


def _size_of(inspection: Inspection, outcome: Outcome) -> tuple[int, int]:
    """Changes and bytes. For a transaction that was not aborted, excludes changes of its aborted subtransactions."""
    totals = [inspection.total.own_fragments.get(fragment, FragmentTotals()) for fragment in outcome.fragments]
    aborted = 0 if outcome.status is TransactionStatus.ABORTED else sum(fragment.aborted for fragment in totals)
    return sum(fragment.changes for fragment in totals) - aborted, sum(fragment.size for fragment in totals)


def kind_of_transaction(outcome: Outcome) -> str:
    return "prepared" if outcome.gid is not None else "streamed" if outcome.scope is not None else "ordinary"


def transaction_report(inspection: Inspection, outcome: Outcome) -> TransactionReport:
    kind, status = kind_of_transaction(outcome), outcome.status.value
    changes, size = _size_of(inspection, outcome)
    path = inspection.paths.get(outcome.fragments[0][0], "") if outcome.fragments else ""
    lsn, time, aborted = as_lsn(outcome.commit_lsn), as_time(outcome.commit_ts), len(outcome.aborted_subxids)
    return TransactionReport(outcome.xid, kind, status, changes, size, outcome.gid, path, lsn, time, aborted)


def _biggest(inspection: Inspection) -> list[TransactionReport]:
    assembled = inspection.assembled
    reports = [transaction_report(inspection, outcome) for outcome in (*assembled.ended, *assembled.open)]
    reports += [replace(report, file=inspection.paths.get(n, "")) for n, report in inspection.total.biggest]
    return sorted(reports, key=lambda report: -report.size)[:BIGGEST]


def _sizes(inspection: Inspection) -> dict[str, int]:
    digits = Counter(inspection.total.digits)
    for outcome in inspection.assembled.ended:
        if outcome.status is TransactionStatus.COMMITTED:
            changes, _ = _size_of(inspection, outcome)
            digits[len(str(changes)) if changes else 0] += 1
    return {f"{10 ** (n - 1)}-{10**n - 1}" if n else "0": count for n, count in sorted(digits.items()) if count}


def _relations(inspection: Inspection) -> Iterable[RelationReport]:
    history = inspection.assembled.assembly.relations
    user_types = UserTypes.of(inspection.assembled.assembly.types.values(), {})
    entries: defaultdict[int, list[RelationEntry]] = defaultdict(list)
    for entry in history.entries:
        entries[entry.relation.oid].append(replace(entry, relation=history.masked(entry.relation)))
    changed: defaultdict[int, Counter[str]] = defaultdict(Counter)
    others: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for (oid, tag, status), count in inspection.total.changes.items():
        if status == TransactionStatus.COMMITTED.value:
            changed[oid][tag] += count
        else:
            others[oid][status] += count
    for oid in sorted({*entries, *changed, *others}):
        latest = history.newest(oid)
        schema, table = (None, None) if latest is None else (latest.namespace, latest.name)
        first: dict[Relation, RelationEntry] = {}  # of each description
        for entry in sorted(entries[oid], key=lambda e: e.position):
            first.setdefault(entry.relation, entry)
        versions = tuple(_version(inspection, entry, user_types) for entry in first.values())
        committed = {tag: changed[oid][tag] for tag in "IUDT"}
        yield RelationReport(oid, schema, table, versions, committed, dict(sorted(others[oid].items())))


def _version(inspection: Inspection, entry: RelationEntry, user_types: UserTypes) -> VersionReport:
    relation, (file, ordinal) = entry.relation, entry.position
    columns = tuple(ColumnReport(c.name, type_of(c, user_types).name, c.is_key) for c in relation.columns)
    identity, path = relation.replica_identity.name.lower(), inspection.paths.get(file, "")
    is_streamed = entry.scope is not None
    return VersionReport(relation.namespace, relation.name, identity, columns, path, ordinal, is_streamed)


def _damages(inspection: Inspection) -> list[str]:
    return [
        f"{inspection.paths[number]}: {counted(damage.size, 'byte')} at offset {damage.offset:,}: "
        f"{without_offset(damage.reason)}" + ("; cut off by a receiver that died" if damage.is_torn else "")
        for number, scan in sorted(inspection.scans.items())
        for damage in scan.damages
    ]


def _gaps(inspection: Inspection) -> list[str]:
    breaks = [
        f"{inspection.paths[gap.file]}: {gap.reason}{'; the file is not counted' if gap.is_excluded else ''}"
        for gap in inspection.assembled.breaks
        if not gap.is_beginning or gap.is_excluded
    ]
    return [*inspection.missing, *breaks]


def _remarks(inspection: Inspection) -> list[str]:
    lines = [
        f"{inspection.paths[gap.file]}: begins in the middle of an archive: {gap.reason}"
        for gap in inspection.assembled.breaks
        if gap.is_beginning and not gap.is_excluded
    ]
    lines += [
        f"{part.path}: the same content as {inspection.paths.get(part.same_as or 0, 'another')}"
        for part in inspection.selection.with_status(FileStatus.DUPLICATE).values()
    ]
    lines += [
        f"{inspection.paths[number]}: incomplete after offset {scan.consumed:,}: {without_offset(scan.tail)}"
        for number, scan in sorted(inspection.scans.items())
        if scan.tail is not None
    ]
    lines += [
        rounding_remark(inspection.paths[number])
        for number, inspected in sorted(inspection.inspections.items())
        if inspected.settings[ROUNDED]
    ]
    return [*lines, *inspection.remarks]

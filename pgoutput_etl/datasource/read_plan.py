"""Plans a read in one process: inspects the archive and decides which rows count, so tasks only reread files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.console import counted, no_progress
from pgoutput_etl.datasource.json_changes import JSON_CHANGES, json_batches
from pgoutput_etl.datasource.options import COMMIT_LSN, COMMIT_TS, OP, Kind, Narrowing, ReadOptions
from pgoutput_etl.datasource.storage import ArchiveStorage
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.explore.archive_rows import (
    TRANSACTIONS,
    RowView,
    batches_of_files,
    own_transactions,
    times,
    transaction_batches,
)
from pgoutput_etl.explore.table_rows import ADDED_COLUMNS, STATUS_COLUMN, RowQuery, table_batches
from pgoutput_etl.identifiers import is_chosen, unmatched
from pgoutput_etl.inspection.archive import Inspection, inspect_archive
from pgoutput_etl.inspection.file_scan import undescribed
from pgoutput_etl.inspection.local_runner import local_runner
from pgoutput_etl.inspection.report import report_on
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.scan.message_row import LOGICAL_TAG
from pgoutput_etl.schema.table_shape import TIMESTAMP
from pgoutput_etl.transactions.logical_messages import IDENTIFIED_BY, LOGICAL_SCHEMA, messages_that_count
from pgoutput_etl.transactions.outcome import TransactionStatus

Files = Iterator[tuple[str, bytes]]  # path and content

Versions = Mapping[int, frozenset[int]]  # numbers of relation versions, by OID

_PART_SIZE = 1 << 24  # stored bytes per task, if no file is larger

_FIRST = (OP, COMMIT_LSN, COMMIT_TS, "_xid", "_seq")  # first columns of a table's frame

_TRANSACTION_NAMES = {
    COMMIT_LSN: "commit_lsn",
    COMMIT_TS: "commit_time",
    "_xid": "xid",
    "status": "fate",
    **{name: name for name in ("kind", "changes", "aborted_changes", "bytes", "gid", "origin", "file")},
}

_MESSAGES = LOGICAL_SCHEMA.set(LOGICAL_SCHEMA.get_field_index("commit_ts"), pa.field("commit_ts", TIMESTAMP))

_MESSAGE_NAMES = {
    COMMIT_LSN: "commit_lsn",
    COMMIT_TS: "commit_ts",
    "_xid": "xid",
    **{name: name for name in (*IDENTIFIED_BY, "transactional")},
}

_RELATIONS = pa.schema(
    [
        ("oid", pa.int64()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("replica_identity", pa.string()),
        ("columns", pa.list_(pa.struct([("name", pa.string()), ("type", pa.string()), ("is_key", pa.bool_())]))),
        ("file", pa.string()),
        ("ordinal", pa.int64()),  # of the message in its file
        ("streamed", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class FrameRows:
    """The rows of a frame. schema: as `read` returns them. names: their columns, by the frame's column names. more:
    rows in addition to those from files. is_one_part: True if a single task must read all files."""

    schema: pa.Schema
    names: Mapping[str, str]
    read: Callable[[Files], Iterator[pa.RecordBatch]] | None = None
    more: pa.Table | None = None
    is_one_part: bool = False


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Sent to tasks. commits: lowest and highest commit LSN of each file; None without commits. sizes: stored bytes of
    each file."""

    rows: FrameRows
    narrowing: Narrowing
    storage: ArchiveStorage
    commits: Mapping[str, tuple[int, int] | None]
    sizes: Mapping[str, int]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, self.rows.schema.field(source).type) for name, source in self.rows.names.items()])

    def parts(self) -> list[list[str] | None]:
        """The input of each task; see `read`."""
        return [*self._files_of_tasks(), *([] if self.rows.more is None else [None])]

    def _files_of_tasks(self) -> list[list[str]]:
        if self.rows.read is None:
            return []
        if self.rows.is_one_part:
            return [list(self.commits)]
        parts: list[list[str]] = []
        room = 0
        for path, commits in self.commits.items():
            if self.narrowing.may_have(commits):
                if self.sizes[path] > room:
                    parts.append([])
                    room = _PART_SIZE
                parts[-1].append(path)
                room -= self.sizes[path]
        return parts

    def read(self, part: list[str] | None) -> Iterator[pa.RecordBatch]:
        """The rows of some files or, for None, of `more`. Raises ArchiveError."""
        batches: Iterator[pa.RecordBatch] = iter(() if self.rows.more is None else self.rows.more.to_batches())
        if part is not None and self.rows.read is not None:
            batches = self.rows.read((path, self.storage.read(path)) for path in part)
        schema = self.schema
        for batch in batches:
            columns = [batch.column(source) for source in self.rows.names.values()]
            narrowed = self.narrowing.of_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            if narrowed.num_rows:
                yield narrowed


def plan_read(options: ReadOptions, landed: Listing, storage: ArchiveStorage) -> tuple[ReadPlan, Inspection]:
    """Inspects the archive on all cores. landed: its files. Raises ConfigError and ArchiveError."""
    types = {} if options.config is None else options.config.types
    with local_runner(options.framing, storage.read) as runner:
        inspection = inspect_archive(landed, runner, no_progress)
        view = RowView.of_inspection(inspection, types, options.framing, masks=options.config)
        chosen = _chosen(options, view)
        if not options.skips_damage:
            query = partial(undescribed, statuses=view.statuses, versions=view.versions)
            found = runner.query(query) if options.kind is Kind.CHANGES else {}
            others = view.versions.keys() - chosen.keys()
            _refuse_damage(inspection, set().union(*found.values()) - others)
    sizes = {path: task.size for path, task in view.tasks.items()}
    rows = _rows(options, inspection, view, chosen)
    return ReadPlan(rows, options.narrowing, storage, _commits(inspection), sizes), inspection


def _chosen(options: ReadOptions, view: RowView) -> Versions:
    """The versions of the tables to read. A table that the configuration skips has no rows."""
    config = options.config
    names = {
        (oid, number): relation.full_name
        for oid, versions in view.versions.items()
        for number, relation in enumerate(versions.relations)
        if config is None or not config.rule_for(relation.namespace, relation.name).skip
    }
    for pattern in unmatched(options.tables, names.values()):
        raise ConfigError(f"the archive has no table {pattern!r}")
    chosen: dict[int, frozenset[int]] = {}
    for (oid, number), name in names.items():
        if is_chosen(name, options.tables):
            reason = None if view.policy is None else view.policy.reason_unmaskable(oid)
            if reason is not None:
                raise ConfigError(f"{name}: {reason}")
            chosen[oid] = chosen.get(oid, frozenset()) | {number}
    return chosen


def _refuse_damage(inspection: Inspection, oids: set[int]) -> None:
    """Raises ArchiveError if the archive is damaged. oids: relations that have changes without a description."""
    report = report_on(inspection)
    problems = [*report.unreadable, *report.gaps, *report.damages] if inspection.is_damaged else []
    problems += [f"no Relation message describes OID {oid} where it has changes" for oid in sorted(oids)]
    if problems:
        more = f" (and {counted(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
        raise ArchiveError(f"{problems[0]}{more}. To read the rest, set the option on_error to quarantine")


def _commits(inspection: Inspection) -> dict[str, tuple[int, int] | None]:
    """The commit LSNs of each file, in file order, including those of transactions that end in another file."""
    lsns = {number: [lsn for lsn in scan.commits if lsn is not None] for number, scan in inspection.scans.items()}
    for outcome in inspection.assembled.ended:
        for number, _ in outcome.fragments:
            if outcome.commit_lsn is not None and number in lsns:
                lsns[number].append(outcome.commit_lsn)
    return {inspection.paths[number]: (min(own), max(own)) if own else None for number, own in sorted(lsns.items())}


def _rows(options: ReadOptions, inspection: Inspection, view: RowView, chosen: Versions) -> FrameRows:
    match options.kind:
        case Kind.CHANGES if options.table is not None:
            return _table_rows(options, options.table, view)
        case Kind.CHANGES:
            read = partial(batches_of_files, partial(json_batches, view=view, chosen=chosen))
            return FrameRows(JSON_CHANGES, {name: name for name in JSON_CHANGES.names}, read)
        case Kind.TRANSACTIONS:
            read = partial(batches_of_files, partial(transaction_batches, view=view))
            return FrameRows(TRANSACTIONS, _TRANSACTION_NAMES, read, own_transactions(inspection))
        case Kind.MESSAGES:
            return FrameRows(_MESSAGES, _MESSAGE_NAMES, partial(_logical_messages, view), is_one_part=True)
        case Kind.RELATIONS:
            rows = [
                {"oid": relation.oid, **asdict(version)}
                for relation in report_on(inspection).relations
                for version in relation.versions
                if is_chosen(f"{version.schema}.{version.table}", options.tables)
            ]
            more = pa.Table.from_pylist(rows, _RELATIONS)
            return FrameRows(_RELATIONS, {name: name for name in _RELATIONS.names}, more=more)


def _table_rows(options: ReadOptions, table: str, view: RowView) -> FrameRows:
    key = None if options.config is None else options.config.rule_for(*table.split(".", 1)).key
    query = RowQuery.of_inspection(view, table, key, frozenset([TransactionStatus.COMMITTED]), {})
    added = {name.replace("_pg", "", 1): name for name in ADDED_COLUMNS.names if name != STATUS_COLUMN}
    own = [name for name in query.schema.names if name not in ADDED_COLUMNS.names]
    taken = [name for name in own if name in added]
    if taken:
        raise ConfigError(f"{table} has a column {taken[0]!r}, which is the name of a metadata column")
    names = {name: added.pop(name) for name in _FIRST} | {name: name for name in own} | added
    return FrameRows(query.schema, names, partial(batches_of_files, partial(table_batches, view=view, query=query)))


def _logical_messages(view: RowView, files: Files) -> Iterator[pa.RecordBatch]:
    """Each Message once: after a reconnect, the server sends non-transactional ones again."""
    known: set[tuple[object, ...]] = set()
    for path, content in files:
        for rows, _ in view.rows(path, content):
            messages = messages_that_count(rows.filter(pc.equal(rows.column("tag"), LOGICAL_TAG)), view.statuses)
            is_new = []
            for row in messages.select(["transactional", *IDENTIFIED_BY]).to_pylist():
                identity = tuple(row.values())
                is_new.append(identity not in known)
                if not row["transactional"]:
                    known.add(identity)
            place = _MESSAGES.get_field_index("commit_ts")
            commit_ts = times(messages.column("commit_ts"))
            yield messages.set_column(place, _MESSAGES.field(place), commit_ts).filter(pa.array(is_new, pa.bool_()))

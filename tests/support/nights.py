"""The nightly job without Spark: the same scan, assembly and batch plan, on tables and a ledger in memory.

State passes from night to night in the ledger's own forms (JSON, rows), so that nothing else is remembered. Tables are
written one event after the other, as replay.py does, and appended to if the job would append. Tests therefore cover
everything before the writing: transactions, versions, names, paths, schema spans, windows, and write methods.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_etl.changes.event_log import every_event
from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.changes.key_exchanges import without_exchanges
from pgoutput_etl.changes.key_facts import KeyHashes, hashes_of
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.config.settings import Config, Source, State, Target
from pgoutput_etl.ingest.assemble import configured
from pgoutput_etl.ledger.tables import catalog_entry, catalog_row, relation_of, relation_row, table_row, table_state
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.replay.mirror import Replay, Row, migrated_rows, rows_under, target_row, without_removed
from pgoutput_etl.scan.blocks import BlockKind, Packer, unpacked
from pgoutput_etl.scan.message_row import CHANGE_TAGS
from pgoutput_etl.scan.request import ScanResult
from pgoutput_etl.schema.definitions import Definitions
from pgoutput_etl.schema.relation_history import RelationEntry, RelationHistory
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.schema.version_spans import RowPositions
from pgoutput_etl.targets.mismatches import added
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import (
    APPLIED,
    HELD,
    SKIPPED,
    HeldTable,
    TableState,
    TableTask,
    complete_since,
    mismatches_left,
    tables_ahead,
)
from pgoutput_etl.targets.target_plan import TargetPlan, plan_targets
from pgoutput_etl.targets.write_method import WriteFacts, WriteMethod, need_reduction, write_method
from pgoutput_etl.transactions.assembly import Assembly, open_messages
from pgoutput_etl.transactions.outcome import FragmentId, control_rows
from pgoutput_etl.transactions.statistics import (
    COUNTED_KINDS,
    BatchStatistics,
    CommitRange,
    StatisticsRequest,
    positions_in,
)
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.support.scan_parts import scan_file

CONFIG = Config(Source("s", "landing"), Target("root"), State("root/_pgoutput_etl"))
Block = Mapping[str, Any]
_STEPS = {"T": 0, "X": 0, "D": 0, "U": 0, "V": 1, "I": 1}  # the order of the two events of one message


def blocks_of(batches: Iterable[pa.RecordBatch], kind: BlockKind = BlockKind.CHANGE) -> list[Block]:
    packer = Packer(kind)
    packed = [block for batch in batches if batch.num_rows for block in packer.add(batch)]
    return [row for block in (*packed, *packer.rest()) for row in block.to_pylist()]


@dataclass(slots=True)
class MemoryRows:
    """batch_plan.BatchRows for blocks in memory."""

    blocks: list[Block]
    fates: StatusLookup

    def statistics(self, request: StatisticsRequest) -> BatchStatistics:
        total = BatchStatistics(request)
        for block in self.blocks:
            part = BatchStatistics(request)
            rows = self.fates.of_batch(unpacked(block, COUNTED_KINDS))
            part.add(BlockKind(block["kind"]), block["relation"], rows, len(block["tuples"]), self.fates)
            total.merge(pickle.loads(pickle.dumps(part)))
        return total

    def positions(self, oids: Collection[int], windows: Mapping[int, CommitRange]) -> dict[int, RowPositions]:
        parts_by_oid: dict[int, list[RowPositions]] = {}
        for block in self.changes():
            if block["relation"] in oids:
                rows = self.fates.of_batch(unpacked(block, COUNTED_KINDS))
                parts_by_oid.setdefault(block["relation"], []).append(
                    positions_in(rows, self.fates, block["relation"], windows)
                )
        return {oid: _concatenated(parts) for oid, parts in parts_by_oid.items()}

    def changes(self) -> list[Block]:
        return [block for block in self.blocks if block["kind"] in (BlockKind.CHANGE.value, BlockKind.WAITING.value)]


def _concatenated(parts: list[RowPositions]) -> RowPositions:
    names = ("lsn", "file", "ordinal", "scope")
    return RowPositions(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass(slots=True)
class StoredTable:
    """A Delta table: its rows after each version, as events of the shape that they were written under."""

    versions: list[tuple[TableShape, list[Row]]] = field(default_factory=list)

    def write(self, shape: TableShape, rows: list[Row]) -> int:
        self.versions.append((shape, rows))
        return len(self.versions) - 1


@dataclass(slots=True)
class Nights:
    """A ledger and its tables, and a reference replay. unknowable: OIDs of tables whose archive lacks changes, so that
    either may be anything."""

    config: Config = CONFIG
    replay: Replay = field(default_factory=Replay)
    state: str | None = None
    relations: list[dict[str, Any]] = field(default_factory=list)
    types: dict[int, Type] = field(default_factory=dict)
    catalog: list[dict[str, Any]] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    store: dict[Place, StoredTable] = field(default_factory=dict)
    files: int = 0
    unknowable: Set[int] = frozenset()
    methods: Counter[WriteMethod] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.replay.origins = self.config.source.origins
        configured(self.replay.assembly, self.config)

    @property
    def states(self) -> dict[int, TableState]:
        return {row["oid"]: table_state(row) for row in self.tables}

    def night(self, contents: Sequence[bytes], config: Config | None = None) -> TargetPlan:
        """Applies these files as one batch. If it raises an error, as the job would, nothing has changed."""
        config = config or self.config
        assembly = self._assembly()
        configured(assembly, config)
        lsn_before, known = assembly.last_commit_lsn, len(assembly.relations.entries)
        waiting = blocks_of(_of_units(self.waiting, _open_units(assembly)), BlockKind.WAITING)
        states = self.states
        ahead = tables_ahead(states, lsn_before)
        scanned = [scan_file(f"{self.files + n}", self.files + n, content) for n, content in enumerate(contents)]
        _assemble(assembly, scanned)
        batches = [batch for file in scanned for batch in file.batches]
        outcomes = (*assembly.outcomes, *assembly.open_outcomes())
        fates = StatusLookup.of(outcomes, assembly.watermarks, origins=config.source.origins)
        rows = MemoryRows([*blocks_of(batches), *waiting], fates)
        planned = plan_targets(config, assembly, rows, states, ahead, str)
        after = self._write(planned, rows, lsn_before, assembly.last_commit_lsn)

        self.files += len(contents)
        self.tables = [table_row(_advanced(state, assembly)) for state in (states | after).values()]
        self.state = json.dumps(assembly.state())
        self.relations += [_entry_row(entry) for entry in assembly.relations.entries[known:]]
        self.types = dict(assembly.types)
        settled = [row for row in self.catalog if row["xid"] is None]
        self.catalog = settled + [catalog_row(entry) for entry in assembly.relations.definitions.to_store()]
        self.waiting = _of_units([*self.waiting, *batches], _open_units(assembly))
        for file in scanned:
            self.replay.add_scanned(f"{file.summary.file}", file)
        return planned

    def _assembly(self) -> Assembly:
        entries = [_entry_of(row) for row in self.relations]
        if self.state is None:
            return Assembly()
        state, relations = json.loads(self.state), RelationHistory.of(entries)
        relations.definitions = Definitions.of(map(catalog_entry, self.catalog), open_messages(state))
        return Assembly(relations, state, self.types)

    def _write(self, planned: TargetPlan, rows: MemoryRows, lsn_before: int, lsn: int) -> dict[int, TableState]:
        plan = planned.tables
        after = {held.oid: self._left(held, HELD, lsn_before) for held in plan.held}
        for skipped in plan.passed_over:
            was_held = skipped.state is not None and not skipped.state.is_complete
            status = skipped.state.status if skipped.state is not None and was_held else SKIPPED
            after[skipped.oid] = self._left(skipped, status, lsn_before)
        moved = {task.oid: self._at(*task.moved_from) for task in plan.tasks if task.moved_from is not None}
        for task in plan.tasks:
            after[task.oid] = self._write_table(task, rows, moved.get(task.oid), lsn)
        for path in plan.vacated:
            shape, _ = self.store[path].versions[-1]
            self.store[path].write(shape, [])
        return after

    def _at(self, path: Place, version: int) -> tuple[TableShape, list[Row]]:
        return self.store[path].versions[version]

    def _left(self, held: HeldTable, status: str, lsn_before: int) -> TableState:
        state = held.state
        if state is None:
            return TableState.unwritten(held, status, lsn_before)
        if held.moves_to is not None:
            version = self.store.setdefault(held.moves_to, StoredTable()).write(*self._at(state.path, state.version))
            state = replace(state, path=held.moves_to, version=version)
        return replace(state, status=status, reason=held.reason)

    def _write_table(
        self, task: TableTask, rows: MemoryRows, moved: tuple[TableShape, list[Row]] | None, lsn: int
    ) -> TableState:
        stored = self.store.setdefault(task.path, StoredTable())
        has_rows = task.state is not None and task.changes.truncated_at is None
        current: list[Row] = []
        mismatches = mismatches_left(task.state, task.changes)
        if has_rows and task.state is not None:
            _, current = moved or self._at(task.state.path, task.state.version)
        for segment in task.spans:
            if segment.migration is not None:
                current = migrated_rows(current, segment.migration)
            before, table = current, rows_under(segment.shape)
            for row in current:
                table.put(row)
            if segment.removal is not None:
                table = without_removed(table, segment.removal)
                before = list(table.events())
            commits = CommitRange() if task.cutoff is None else CommitRange(last=task.cutoff.lsn - 1)
            window = Window(task.changes.truncated_at, segment.start, segment.end, commits)
            events = events_in(rows.changes(), rows.fates, window, segment.shape)
            method, is_reduced = self._method(task, segment.shape, before, events)
            for event in events:
                table.apply(event)
            mismatches = added(mismatches, table.mismatches)
            current = list(table.events())
            if method is WriteMethod.APPEND or (method is WriteMethod.OVERWRITE and not is_reduced):
                current = [*before, *events] if method is WriteMethod.APPEND else events
        relation = task.shape.relation
        return TableState(
            oid=task.oid,
            schema=relation.namespace,
            table=relation.name,
            path=task.path,
            version=stored.write(task.shape, current),
            last_commit_lsn=lsn if task.cutoff is None else task.cutoff.lsn - 1,
            status=APPLIED if task.cutoff is None else HELD,
            reason=None if task.cutoff is None else task.cutoff.reason,
            relation=relation,
            key=tuple(task.shape.columns[i].name for i in task.shape.key),
            retired=task.retired,
            types=tuple(column.type.stored_as for column in task.shape.columns),
            mode=task.mode,
            last_row=task.changes.last_row or (None if task.state is None else task.state.last_row),
            complete_since=complete_since(task.state, task.changes),
            mismatches=mismatches,
            doubts=task.doubts,
            used=task.used,
        )

    def _method(
        self, task: TableTask, shape: TableShape, target_rows: list[Row], events: list[Row]
    ) -> tuple[WriteMethod, bool]:
        """The job's write method for these events, and whether it first reduces them to the last event per key. Facts
        are proven from the keys, as in the job."""
        changes = task.changes
        only_inserts = not (changes.updates or changes.deletes or changes.truncates)
        facts = WriteFacts(not shape.is_bag, not target_rows, only_inserts)
        if only_inserts and not shape.is_bag:
            new, stored = (_hashes(rows, shape) for rows in (events, target_rows))
            if new is not None:
                facts = replace(facts, keys_are_unique=len(np.unique(new)) == len(new))
                facts = replace(facts, keys_are_absent=stored is not None and not np.isin(new, stored).any())
        method = write_method(facts)
        self.methods[method] += 1
        return method, need_reduction(facts) or not only_inserts

    def events(self, oid: int) -> tuple[TableShape, list[Row]]:
        """The events that wrote the table's rows, and their shape."""
        state = self.states[oid]
        return self._at(state.path, state.version)

    def rows(self, oid: int) -> list[str]:
        shape, rows = self.events(oid)
        return sorted(repr(target_row(row, shape)) for row in rows)

    def assert_as_replayed(self, keys: Mapping[str, tuple[str, ...]] | None = None) -> None:
        """Checks that every complete table has the reference's rows, at its own path, which follows from its name."""
        states, expected, holders = self.states, self.replay.rows_by_relation(), self.replay.name_holders()
        paths = [state.path for state in states.values() if state.path]
        assert len(set(paths)) == len(paths), f"two tables at one path: {sorted(map(str, paths))}"
        for oid, state in states.items():
            if not state.is_complete or oid in self.unknowable:
                continue
            if state.doubts and state.mismatches:  # a guess about its columns was wrong, and the state says so
                continue
            assert oid in expected, f"{state.path}: no committed row"
            want = sorted(
                repr(row) for row in self.replay.table(oid, expected[oid], keys, types=self.config.types).rows
            )
            assert self.rows(oid) == want, f"{state.path}: expected {want}, found {self.rows(oid)}"
            has_name = holders.get((state.schema, state.table)) == oid
            own, displaced = f"{state.schema}/{state.table}", f"displaced/{self.config.source.name}/{oid}"
            path = f"{self.config.target.root}/{own}" if has_name else f"{self.config.state.root}/{displaced}"
            assert str(state.path) == path
        missing = expected.keys() - states.keys()
        assert not missing, f"tables without a state: {missing}"


def _assemble(assembly: Assembly, scanned: list[ScanResult]) -> None:
    ends: list[tuple[int, FragmentId]] = []
    for file in scanned:
        rows = [row for batch in file.batches for row in batch.to_pylist()]
        assembly.add_file(file.summary, control_rows(file.batches))
        ends += [(row["top_xid"], (row["file"], row["unit"])) for row in rows if row["tag"] == "C" and row["unit"]]
    assembly.replace_streams(ends)


def events_in(
    blocks: Iterable[Block], statuses: StatusLookup, window: Window, shape: TableShape, mode: Mode = Mode.MIRROR
) -> list[Row]:
    """The events of one table, in order; with truncates in a mode that keeps the past."""
    own = [block for block in blocks if block["relation"] == shape.relation.oid]
    kept = table_mode(mode)
    rows = [rows_in(block, statuses, window, with_truncates=not kept.is_copy) for block in own]
    return events_of(pa.Table.from_batches(rows, ROW_SCHEMA), shape, keeps_changes=not kept.has_rows)


def events_of(rows: pa.Table, shape: TableShape, keeps_changes: bool = False) -> list[Row]:
    """The events of committed message rows, in order. keeps_changes: as in key_exchanges.exchanging."""
    serial = (without_exchanges(batch, shape, keeps_changes) for batch in rows.combine_chunks().to_batches())
    events = [row for batch in serial for events in every_event(batch, shape) for row in events.to_pylist()]
    for event in events:
        event["_unrep"] = {entry["key"]: entry["value"] for entry in event["_unrep"] or ()}
    return sorted(events, key=lambda e: (e["_lsn"], e["_file"], e["_ordinal"], _STEPS[e["_op"]]))


def _hashes(rows: list[Row], shape: TableShape) -> KeyHashes | None:
    columns = [pa.array([row[f"c{i}"] for row in rows], shape.columns[i].type.arrow) for i in shape.key]
    return hashes_of(columns, shape)


def _open_units(assembly: Assembly) -> set[FragmentId]:
    return {unit for outcome in assembly.open_outcomes() for unit in outcome.fragments}


def _of_units(batches: Iterable[pa.RecordBatch], units: set[FragmentId]) -> list[pa.RecordBatch]:
    """The rows of these fragments."""
    result = []
    for batch in batches:
        columns = zip(*(batch.column(name).to_pylist() for name in ("file", "unit", "tag")), strict=True)
        is_selected = [(file, unit) in units and tag in CHANGE_TAGS for file, unit, tag in columns]
        if any(is_selected):
            result.append(batch.filter(pa.array(is_selected)))
    return result


def _advanced(state: TableState, assembly: Assembly) -> TableState:
    if not state.is_complete:
        return state
    return replace(state, last_commit_lsn=max(state.last_commit_lsn, assembly.last_commit_lsn))


def _entry_row(entry: RelationEntry) -> dict[str, Any]:
    return {"position": entry.position, "scope": entry.scope, "root": entry.root, **relation_row(entry.relation)}


def _entry_of(row: Mapping[str, Any]) -> RelationEntry:
    return RelationEntry(row["position"], relation_of(row), row["scope"], row["root"])

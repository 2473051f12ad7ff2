"""Decides each table's path, schema spans, and moves in a batch, or why it is held.

A table is an OID. A renamed table is still the same table, and its rows move with it. If another OID takes its name,
the new table takes the path, and the old one is *displaced*: it was renamed or dropped, but the archive doesn't show
which. A displaced table moves below the ledger's folder, so that it is complete if it returns under a new name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgoutput_etl.config.rules import OnInvalidText, TableRule
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, SequenceError, TableError
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.catalog_message import TABLE
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.reasons import CONTRACT_KINDS, kind_of
from pgoutput_etl.schema.column_changes import ChangedAt, changed_at, with_changes
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.diff import ChangeKind, Lineage, SchemaChange, has_cast
from pgoutput_etl.schema.layout import Readers
from pgoutput_etl.schema.migration import Retired, migration_to, next_version
from pgoutput_etl.schema.relation_history import CommitPosition, RelationHistory, RelationSpan
from pgoutput_etl.schema.removal import Removal, removal_of
from pgoutput_etl.schema.table_shape import TableShape, table_columns, table_shape
from pgoutput_etl.targets import location
from pgoutput_etl.targets.domains import check_key, domain_remarks, new_domains
from pgoutput_etl.targets.drops import is_archived
from pgoutput_etl.targets.gaps import gap_between, gap_remarks
from pgoutput_etl.targets.layout import fitting
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.partitions import (
    RowLsns,
    partition_change_remarks,
    removal_remarks,
    row_lsns,
    with_other_partitions,
)
from pgoutput_etl.targets.plan import (
    BEFORE_FILES,
    WAS_SKIPPED,
    CompleteSince,
    HeldTable,
    SchemaSpan,
    Since,
    TableChanges,
    TablePlan,
    TableState,
    TableTask,
    others_at,
)
from pgoutput_etl.targets.version_chain import key_by_version, with_later_steps
from pgoutput_etl.targets.written_settings import (
    OtherSettings,
    other_masks,
    other_mode,
    other_types,
    refuse_other_settings_of_tables,
)
from pgoutput_etl.transactions.cutoff import Cutoff
from pgoutput_etl.types import UserTypes, contradiction

Name = tuple[str, str]  # schema, table


def name_holders(states: Mapping[int, TableState], changes: Mapping[int, TableChanges]) -> dict[Name, int]:
    """The OID of the table that has each name: the one with the last committed row under that name. states: after the
    previous batch. changes: of this batch.

    A Relation message alone doesn't name a table, because its transaction may never commit.
    """
    last: dict[Name, tuple[CommitPosition, int]] = {}
    for oid in {*states, *changes}:
        named = _last_named(states.get(oid), changes.get(oid))
        if named is not None:
            name, position = named
            last[name] = max(last.get(name, (position, oid)), (position, oid))
    return {name: oid for name, (_, oid) in last.items()}


def _last_named(state: TableState | None, changes: TableChanges | None) -> tuple[Name, CommitPosition] | None:
    """A table's name, and the last committed row under it."""
    if changes is not None and changes.runs:
        relation = changes.runs[-1].relation
        return (relation.namespace, relation.name), changes.last_row or (0, 0, 0)
    if state is None:
        return None
    return (state.schema, state.table), state.last_row or (-1 if state.is_displaced else 0, 0, 0)


def make_plan(
    config: Config,
    history: RelationHistory,
    changes: Mapping[int, TableChanges],
    states: Mapping[int, TableState],
    user_types: UserTypes,
    *,
    cutoffs: Mapping[int, Cutoff] | None = None,
    ahead: Collection[int] = (),
    placed: Collection[int] = (),
    named: Mapping[int, TableState] | None = None,
    accepts_changes: bool = False,
) -> TablePlan:
    """changes: of this batch, without those after a table's cutoff and without commits that a table already has.
    states: after the previous batch. cutoffs: of tables that unreadable bytes concern. ahead: tables that already have
    commits of this batch. placed: tables that are rebuilt at their path, even if `states` differs. named: all tables
    that may have a name, if not `states`. accepts_changes: overrides `on_schema_change`.

    Raises ConfigError or SequenceError if the batch can't be applied.
    """
    cutoffs = cutoffs or {}
    changes = {oid: _described(history, table_changes) for oid, table_changes in changes.items()}
    holders = name_holders(states if named is None else named, changes)
    location.refuse_taken_names(config, holders)
    rows = row_lsns((named or states).values(), changes.values())
    planner = _Planner(config, history, user_types, holders, accepts_changes, rows)
    plan = TablePlan()
    for oid in sorted({*changes, *states, *cutoffs}):
        case = _Case(oid, changes.get(oid), states.get(oid), cutoffs.get(oid), oid in ahead, oid in placed)
        planner.add(plan, case)
    refuse_other_settings_of_tables(planner.contradicting, config)
    return _with_paths_resolved(plan, states, config)


def _described(history: RelationHistory, changes: TableChanges) -> TableChanges:
    """Applies the relation's newest description to changes that no version describes: they are unreadable, but belong
    to that table."""
    newest = None if changes.runs else history.newest(changes.oid)
    return changes if newest is None else replace(changes, runs=(RelationSpan((0, 0, 0), newest),))


@dataclass(frozen=True, slots=True)
class _Case:
    """A table in this batch. has_path: the table is rebuilt at its path."""

    oid: int
    changes: TableChanges | None
    state: TableState | None
    cutoff: Cutoff | None
    is_ahead: bool
    has_path: bool


@dataclass(slots=True)
class _ColumnHistory:
    """Open questions after a table's changes. open: doubts from earlier batches. new: doubts from this one. domains:
    columns of existing rows whose type became a domain. unsent: as in TableChanges. removals: of rows that left with
    partitions."""

    declarations: Declarations
    open: list[Doubt] = field(default_factory=list)
    new: list[Doubt] = field(default_factory=list)
    domains: list[RelationColumn] = field(default_factory=list)
    unsent: CompleteSince | None = None
    removals: list[Removal] = field(default_factory=list)

    def add(self, step: Lineage, before: Relation, begins_empty: bool) -> None:
        """before: the older version. begins_empty: no rows have the older columns, so nothing can be wrong."""
        stayed = {*step.origins, *step.retired}
        gone = {column.name for place, column in enumerate(before.columns) if place not in stayed}
        self.open = [doubt for doubt in self.open if doubt.column not in gone]
        self.new = [doubt for doubt in self.new if doubt.column not in gone]
        if not begins_empty:
            self.new += self.declarations.doubts(step.doubts)

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        return tuple(dict.fromkeys((*self.open, *self.new)))


@dataclass(frozen=True, slots=True)
class _Planner:
    """holders: the OID of the table that has each name. rows: of each table that ever had any. contradicting: tables
    whose stored form contradicts the configuration."""

    config: Config
    history: RelationHistory
    user_types: UserTypes
    holders: Mapping[Name, int]
    accepts_changes: bool
    rows: Mapping[int, RowLsns]
    contradicting: list[OtherSettings] = field(default_factory=list)

    def add(self, plan: TablePlan, case: _Case) -> None:
        changes, state = case.changes, case.state
        runs = self._runs(case)
        if runs is None:
            self._hold(plan, case)
            return
        relation = runs[-1].relation
        rule = self.config.rule_for(relation.namespace, relation.name)
        if rule.skip:
            self._skip(plan, case, relation)
            return
        path = location.target_place(self.config, relation, self.holders)
        is_dropped = is_archived(self.history, case.oid, rule.on_drop)
        path = location.displaced_path(self.config, case.oid) if is_dropped else path
        is_idle = changes is None and state is not None and state.path == path and state.is_complete
        try:
            why = self._contradiction(state, rule, relation, is_idle)
            if state is not None and why is not None:
                self.contradicting.append(OtherSettings(state, why))
                return
            if is_idle:
                return
            plan.tasks.append(self._task(case, rule, path, runs))
        except TableError as error:
            counted, moves_to = changes or TableChanges(case.oid), self._moves_to(state)
            reason = _weightier(error.reason, case.cutoff)
            plan.held.append(HeldTable(case.oid, relation, reason, counted, state, moves_to=moves_to))

    def _contradiction(
        self, state: TableState | None, rule: TableRule, relation: Relation, is_idle: bool
    ) -> str | None:
        """Why the configuration contradicts what is stored. A table that was renamed to a name with another mode is
        held instead. is_idle: nothing will be written."""
        if state is None or not state.is_complete:
            return None
        is_named = (state.schema, state.table) == (relation.namespace, relation.name)
        mode = other_mode(state, rule.mode, relation) if is_named else None
        why = mode or other_masks(state, self.history.masks_of(state.oid))
        return why or (None if is_idle else other_types(state, self.user_types))

    def _runs(self, case: _Case) -> Sequence[RelationSpan] | None:
        """None if all of the table's changes, or its description, come after the cutoff. Raises SequenceError for
        changes without a Relation message."""
        if case.changes is None:
            if case.cutoff is not None or case.state is None:
                return None
            return [RelationSpan((0, 0, 0), case.state.relation)]
        if case.changes.runs:
            return case.changes.runs
        if case.cutoff is not None:
            return None
        raise SequenceError(
            f"no Relation message describes OID {case.oid}, which has changes: the archive begins after the server "
            "sent it. Begin with the slot's first file"
        )

    def _hold(self, plan: TablePlan, case: _Case) -> None:
        """Holds a table whose new changes are all after its cutoff."""
        assert case.cutoff is not None
        state = case.state
        relation = state.relation if state is not None else self.history.newest(case.oid)
        if relation is None:  # its description is unreadable
            relation = Relation(None, case.oid, "unknown", f"oid_{case.oid}", ReplicaIdentity.DEFAULT, ())
        if self.config.rule_for(relation.namespace, relation.name).skip:
            return
        reason, complete_to = case.cutoff.reason, case.cutoff.lsn - 1
        held = HeldTable(case.oid, relation, reason, TableChanges(case.oid), state, complete_to, self._moves_to(state))
        if state is not None and not state.is_complete:
            held = replace(held, reason=_weightier(state.reason or reason, case.cutoff), complete_to=None)
        plan.held.append(held)

    def _skip(self, plan: TablePlan, case: _Case, relation: Relation) -> None:
        """A table that is skipped lacks its changes from then on, even after it is no longer skipped."""
        if case.changes is not None:
            plan.skipped.append(relation.full_name)
        changes = case.changes or TableChanges(case.oid)
        moves_to = self._moves_to(case.state)
        plan.passed_over.append(HeldTable(case.oid, relation, WAS_SKIPPED, changes, case.state, moves_to=moves_to))

    def _moves_to(self, state: TableState | None) -> Place | None:
        """The new path of a held table whose name, and therefore path, another table takes."""
        if state is None or not state.path:
            return None
        has_name = self.holders.get((state.schema, state.table), state.oid) == state.oid
        displaced = location.displaced_path(self.config, state.oid)
        return None if has_name or state.path == displaced else displaced

    def _task(self, case: _Case, rule: TableRule, path: Place, runs: Sequence[RelationSpan]) -> TableTask:
        """Raises TableError for a table that must be held."""
        state, config, relation = case.state, self.config, runs[-1].relation
        changes = case.changes or TableChanges(case.oid)
        if state is not None and not state.is_complete:
            raise TableError(state.reason or "held by an earlier batch", kind_of(state.reason))
        reason = None if self.history.mask is None else self.history.mask.reason_unmaskable(relation.oid)
        if reason is not None:
            raise TableError(reason)
        location.check_location(config, relation, path)
        has_path = case.has_path or (state is not None and state.path == path)
        if path.is_in_catalog and not has_path:
            location.check_is_only(config, relation, self.holders)
        mode = None if state is None else other_mode(state, rule.mode, relation)
        if mode is not None:
            raise TableError(f"{mode}. {_NO_OTHER_MODE}")
        changes = with_other_partitions(self.history, state, changes, self.rows)
        if not table_mode(rule.mode).is_copy:  # other modes store a truncate like any other change
            changes = replace(changes, truncated_at=None)
        history = _ColumnHistory(Declarations(rule.lineage, {} if state is None else dict(state.used)))
        spans, retired, schema_changes = self._spans(case, changes, rule, _merged(runs), history)
        if state is not None and not self.accepts_changes:
            of_columns = (
                change for _, change in schema_changes if rule.key is None or change.kind is not ChangeKind.KEY
            )
            rule.on_schema_change.check(state.full_name, of_columns, history.new)
        for span in spans:
            location.check_names(span.shape, rule.mode, rule.tag)
            if table_mode(rule.mode).needs_key and span.shape.is_bag:
                raise TableError(
                    "mode soft_delete needs a key, and the table has none: an UPDATE would look like a DELETE. "
                    "Configure `key`, or use mode history, which needs no key"
                )
        moved_from = None if state is None or state.path == path else (state.path, state.version)
        moved = ChangeKind.TABLE_MOVED
        if path.is_within(location.displaced_folder(config)):
            is_dropped = is_archived(self.history, case.oid, rule.on_drop)
            moved = ChangeKind.TABLE_ARCHIVED if is_dropped else ChangeKind.TABLE_DISPLACED
        schema_changes += [(None, change) for change in _name_changes(relation, state, moved_from, moved)]
        masks = self.history.masks_of(case.oid)
        left_over = (name for removal in history.removals for name in removal.unknown)
        changes = replace(changes, unsent=history.unsent, lost=(*changes.lost, *left_over))
        laid_out, remarks = _laid_out(spans, rule, self.config.target.readers)
        laid_out = self._commented(laid_out, case, rule, masks)
        remarks += (*partition_change_remarks(changes), *removal_remarks(history.removals, rule.mode))
        remarks += gap_remarks(changes)
        remarks += domain_remarks(history.domains)
        target = (laid_out, path, changes, state, moved_from, False, tuple(schema_changes), retired)
        return TableTask(
            *target, case.cutoff, rule.mode, masks, remarks, doubts=history.doubts, used=history.declarations.used
        )

    def _commented(
        self, spans: tuple[SchemaSpan, ...], case: _Case, rule: TableRule, masks: Mapping[str, str]
    ) -> tuple[SchemaSpan, ...]:
        """Adds the server's comments to spans where the target may lack them, except in a table that sources share."""
        entry, changes = self.history.definitions.committed(case.oid), case.changes or TableChanges(case.oid)
        is_overwritten = case.state is None or changes.truncated_at is not None
        may_lack = is_overwritten or self.history.definitions.has_new_comments(case.oid)
        if entry is None or rule.into is not None or not (may_lack or any(span.migration for span in spans)):
            return spans
        comments = dict(entry.definition.comments)
        return tuple(replace(span, shape=_with_comments(span.shape, comments, masks)) for span in spans)

    def _refuse_contradictions(self, relation: Relation) -> None:
        for column in relation.columns:
            if (wrong := contradiction(column, self.user_types)) is not None:
                raise ConfigError(
                    f"column {column.name!r} of {relation.full_name}: types: {wrong} contradicts the server's catalog: "
                    "remove it, or declare text"
                )

    def _removal(self, run: RelationSpan, shape: TableShape, oid: int, history: _ColumnHistory) -> Removal | None:
        """The rows that leave with their partitions. Adds the removal to the history even if no row can be found."""
        if run.removal is None:
            return None
        removal = removal_of(run.removal, run.relation, shape.columns, self.history.masks_of(oid))
        history.removals.append(removal)
        return removal if removal.partitions else None

    def _numbered(self, state: TableState) -> Relation:
        last_row = state.last_row
        return state.relation if last_row is None else self.history.numbered(state.relation, last_row[1:])

    def _spans(
        self,
        case: _Case,
        changes: TableChanges,
        rule: TableRule,
        runs: Sequence[RelationSpan],
        history: _ColumnHistory,
    ) -> tuple[list[SchemaSpan], Retired, list[tuple[CommitPosition | None, SchemaChange]]]:
        """Splits a table's committed rows where its columns change, and adds doubts about the changes to the
        history."""
        state, truncated_at = case.state, changes.truncated_at
        before = None if state is None else self._numbered(state)
        retired: Retired = () if state is None else state.retired
        columns = None if state is None else table_columns(state.relation, state.retired, self.user_types)
        start = (state.last_commit_lsn + 1, BEFORE_FILES, 0) if state is not None and case.is_ahead else None
        spans: list[SchemaSpan] = []
        schema_changes: list[tuple[CommitPosition | None, SchemaChange]] = []
        kept = None if truncated_at is not None else state
        history.open = history.declarations.open_doubts(() if kept is None else kept.doubts)
        changed: ChangedAt = {} if kept is None else kept.changed_at
        chain = [*([] if before is None else [before]), *(run.relation for run in runs)]
        history.declarations.foresee([relation.columns for relation in chain])
        first = history.declarations.copy()
        keys = {} if rule.key is None else key_by_version(rule.key, chain, first)
        versions = self.history.versions(case.oid)
        types = replace(self.user_types, keeps_bytes=rule.on_invalid_text is OnInvalidText.KEEP)
        for run, end in zip(runs, [*(run.start for run in runs[1:]), None], strict=True):
            step: Lineage | None = None
            domains: tuple[RelationColumn, ...] = ()
            begins_empty = truncated_at is not None and not spans
            if before is not None:
                try:
                    contract = rule.on_schema_change
                    declarations, keeps_dropped = history.declarations, contract.keeps_dropped
                    step, retired = next_version(before, retired, run.relation, declarations, keeps_dropped)
                    schema_changes += [(run.start, change) for change in step.changes]
                    history.add(step, before, begins_empty)
                    domains = new_domains(before, run.relation, step.origins, self.user_types)
                    changed = {} if begins_empty else changed_at(changed, before, run.relation, step, run.start[0])
                except TableError as error:
                    if not begins_empty:
                        raise with_later_steps(error, chain, first) from None
            self._refuse_contradictions(run.relation)
            former, before = before, self.history.numbered(run.relation, run.start[1:])
            if truncated_at is not None and end is not None and end <= truncated_at:
                continue  # the truncate removes all of its rows
            retired = () if begins_empty else retired
            toast, key = (changes.unchanged, changes.moves_toast), keys.get(run.relation.columns)
            partitions = self.history.partitions(case.oid, run.start[1:])
            shape = table_shape(run.relation, versions, key, *toast, types, retired, partitions)
            shape = with_changes(shape, changed)
            if changes.updates or changes.deletes:
                shape.check_partitions()
            migration = None
            if not begins_empty and columns is not None and step is not None:
                migration = migration_to(columns, shape, step, rule.conversions)
                check_key(domains, (shape.columns[i].name for i in shape.key))
                history.domains += domains
                described = (SchemaChange(ChangeKind.RETYPED, name, is_fact=True) for name in migration.described)
                schema_changes += [(run.start, change) for change in described]
                is_cast = has_cast(former, run.relation) and not migration.is_certain
                gap = gap_between(former, run.relation)
                if gap is not None or (history.unsent is None and (step.is_rewritten or is_cast)):
                    history.unsent = CompleteSince(gap or Since.REWRITE, run.start[0])
            if migration is not None and migration.changes_nothing:
                migration = None
            removal = None if begins_empty else self._removal(run, shape, case.oid, history)
            if not table_mode(rule.mode).has_rows:
                removal = None
            spans.append(SchemaSpan(shape, run.start if spans else start, end, migration, removal))
            columns = shape.columns
        return spans, retired, schema_changes


_NO_OTHER_MODE = (
    "A table does not change its mode, because each mode stores different rows: restore `mode`, or rebuild the table "
    "from the archive"
)


def _weightier(reason: str, cutoff: Cutoff | None) -> str:
    """The reason for holding a table. Unreadable bytes outweigh column changes that somebody may accept, because the
    rebuild of a single table would not notice the bytes."""
    return cutoff.reason if cutoff is not None and kind_of(reason) in CONTRACT_KINDS else reason


def _laid_out(
    spans: Sequence[SchemaSpan], rule: TableRule, readers: Readers
) -> tuple[tuple[SchemaSpan, ...], tuple[str, ...]]:
    """The spans with the rule's layout, and remarks about parts that the table can't have after the last span."""
    laid_out: list[SchemaSpan] = []
    remarks: tuple[str, ...] = ()
    for span in spans:
        layout, remarks = fitting(replace(rule.layout, readers=readers), span.shape, rule.mode, rule.tag)
        laid_out.append(replace(span, shape=replace(span.shape, layout=layout)))
    return tuple(laid_out), remarks


def _with_comments(shape: TableShape, comments: Mapping[int, str], masks: Mapping[str, str]) -> TableShape:
    """comments: by column number. Configured comments take precedence."""
    numbers = {c.name: c.number for c in shape.relation.columns if c.number is not None and c.number in comments}
    named = {name: "" if name in masks else comments[number] for name, number in numbers.items()}
    comment = comments.get(TABLE) if shape.layout.comment is None else shape.layout.comment
    named |= shape.layout.column_comments
    return replace(shape, layout=replace(shape.layout, comment=comment, column_comments=named))


def _name_changes(
    relation: Relation, state: TableState | None, moved_from: tuple[Place, int] | None, moved: ChangeKind
) -> list[SchemaChange]:
    if state is None:
        return []
    if (state.schema, state.table) != (relation.namespace, relation.name):
        return [SchemaChange(ChangeKind.TABLE_RENAMED, "", f"was {state.full_name}", relation.catalog is not None)]
    if moved_from is None:
        return []
    return [SchemaChange(moved, "")]


def _merged(runs: Sequence[RelationSpan]) -> list[RelationSpan]:
    """Merges successive versions that only differ in the table's name."""
    merged: list[RelationSpan] = []
    for run in runs:
        last, new = merged[-1].relation if merged else None, run.relation
        is_same = last is not None and (last.columns, last.replica_identity) == (new.columns, new.replica_identity)
        if not is_same or run.removal is not None:
            merged.append(run)
        else:
            merged[-1] = replace(merged[-1], relation=new)
    return merged


def _with_paths_resolved(plan: TablePlan, states: Mapping[int, TableState], config: Config) -> TablePlan:
    """Marks tasks that overwrite another table's path, gives tables whose path is taken another one, and adds the paths
    that no table uses any more."""
    old_paths = {oid: state.path for oid, state in states.items()}
    taken = {task.path: task.oid for task in plan.tasks}

    def way_out(oid: int) -> Place | None:
        """The new path of rows that must make room for another table."""
        is_taken = bool(old_paths.get(oid)) and taken.get(old_paths[oid], oid) != oid
        return location.displaced_path(config, oid) if is_taken else None

    for tables in (plan.held, plan.passed_over):
        tables[:] = [replace(held, moves_to=held.moves_to or way_out(held.oid)) for held in tables]
    plan.passed_over = [skipped for skipped in plan.passed_over if skipped.changes.runs or skipped.moves_to]
    plan.tasks = [replace(task, way_out=way_out(task.oid)) for task in plan.tasks]
    new_paths = {task.oid: task.path for task in plan.tasks}
    new_paths |= {held.oid: held.moves_to for held in (*plan.held, *plan.passed_over) if held.moves_to is not None}
    for n, task in enumerate(plan.tasks):
        others = others_at(states, task)
        if others and old_paths.get(task.oid) != task.path:
            detail = f"the other table's last Delta version is {others[0].version}"
            change = SchemaChange(ChangeKind.TABLE_REPLACED, "", detail)
            plan.tasks[n] = replace(task, replaces=True, schema_changes=(*task.schema_changes, (None, change)))
    left = {old_paths[oid] for oid, path in new_paths.items() if oid in old_paths and old_paths[oid] != path}
    plan.vacated = sorted(left - set({**old_paths, **new_paths}.values()), key=str)
    return plan

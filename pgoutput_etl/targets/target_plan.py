"""Plans a batch's tables before anything is written, without Spark.

The plan only needs statistics of the batch's rows, so the same code also plans for thousands of random histories in
memory, in tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import TypeAdapter

from pgoutput_etl.config.rule_merge import Rules
from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import RunError
from pgoutput_etl.places import absolute_place, is_relative
from pgoutput_etl.schema.relation_history import RelationHistory, RelationSpan, RelationVersions
from pgoutput_etl.schema.version_spans import RowPositions, relation_spans_of_rows, relation_spans_of_spans
from pgoutput_etl.targets.moves import with_moves, with_removals
from pgoutput_etl.targets.plan import TableChanges, TablePlan, TableState
from pgoutput_etl.targets.planner import Name, make_plan
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff, find_cutoffs
from pgoutput_etl.transactions.statistics import BatchStatistics, CommitRange, RelationStatistics, StatisticsRequest
from pgoutput_etl.types import UserTypes


class BatchRows(Protocol):
    """A batch's message rows after assembly, including rows that waited since earlier batches."""

    def statistics(self, request: StatisticsRequest) -> BatchStatistics: ...

    def positions(self, oids: Collection[int], windows: Mapping[int, CommitRange]) -> dict[int, RowPositions]:
        """The positions of every committed row of these relations, by OID."""


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """statistics: of all rows, including those of held tables. cutoffs: by OID, for tables held by unreadable bytes."""

    statistics: BatchStatistics
    cutoffs: Mapping[int, Cutoff]
    tables: TablePlan


def plan_targets(
    config: Config,
    assembly: Assembly,
    rows: BatchRows,
    states: Mapping[int, TableState],
    ahead: Mapping[int, int],
    path_of: Callable[[int], str],
) -> TargetPlan:
    """assembly: after the batch's files; the batch's last commit is recorded in it. states: after the previous batch.
    ahead: by OID, the last commit LSN of tables that a snapshot advanced beyond the beginning of the batch.

    Raises ConfigError, RunError, or SequenceError if the batch can't be applied.
    """
    history, user_types = assembly.relations, UserTypes.of(assembly.types.values(), config.types)
    versions = {oid: history.versions(oid) for oid in history.oids()}
    windows = {oid: CommitRange(lsn + 1) for oid, lsn in ahead.items()}
    request = _request(windows, versions)
    statistics = counted = rows.statistics(request)
    if statistics.last_commit is not None:
        assembly.record_commit(*statistics.last_commit)
    cutoffs = {oid: cutoff.with_paths(path_of) for oid, cutoff in find_cutoffs(assembly, statistics, states).items()}
    if cutoffs:
        within = {oid: replace(windows.get(oid, CommitRange()), last=at.lsn - 1) for oid, at in cutoffs.items()}
        windows = windows | within
        counted = rows.statistics(replace(request, windows=windows))
    changes = _changes_in(rows, counted, windows, versions)
    changes = with_moves(history, changes, states, assembly.last_commit_lsn, cutoffs)
    changes = with_removals(history, changes, states, assembly.last_commit_lsn, cutoffs)
    plan = make_plan(config, history, changes, states, user_types, cutoffs=cutoffs, ahead=ahead)
    return TargetPlan(statistics, cutoffs, plan)


def settings_of(config: Config) -> str:
    """The part of the configuration that affects a batch's rows, as JSON. A batch stores it when it begins."""
    origins = config.source.origins
    masks = (mask for placed in config.rule_book.placed for mask in placed.rule.column_rules.values())
    settings = {
        "target": {"root": config.target.root, "catalog": config.target.catalog},
        "origins": [None if origins.accepted is None else sorted(origins.accepted), sorted(origins.skipped)],
        "types": dict(config.types),
        "salts": sorted({mask.salt.fingerprint for mask in masks if mask.salt is not None}),
        "tables": [_recorded(rule) for rule in config.tables],
        "defaults": _recorded(config.defaults),
        "rules": config.rules.value,
        "include": config.include,
    }
    return json.dumps(settings, sort_keys=True)


def names_of(history: RelationHistory, states: Mapping[int, TableState], oids: Collection[int]) -> set[Name]:
    """Every name under which a batch may write these tables."""
    relations = [entry.relation for entry in history.entries] + [state.relation for state in states.values()]
    return {(relation.namespace, relation.name) for relation in relations if relation.oid in oids}


def refuse_other_settings(
    settings: str | None, config: Config, tables: Iterable[Name], batch: int, may_skip: bool = True
) -> None:
    """Raises RunError if this run would finish a batch with another configuration than it began with, because its
    tables would then disagree.

    settings: the batch's when it began; None, in an older ledger, is always accepted. tables: all that it may write.
    may_skip: allows the new configuration to skip tables, which are then held until they are rebuilt.
    """
    if settings is None:
        return
    old, new = json.loads(settings), json.loads(settings_of(config))
    if not is_relative(config.state.root):  # older versions recorded relative paths
        old["target"]["root"] = absolute_place(old["target"]["root"] or "") or None
    # Older versions recorded no salts.
    differing = [name for name in ("target", "origins", "types", "salts") if old.get(name, new[name]) != new[name]]
    before = _with_recorded_rules(config, old)
    changed = [name for name in tables if not _is_same_rule(before.rule_for(*name), config.rule_for(*name), may_skip)]
    differing += [f"tables, for {'.'.join(name)}" for name in sorted(changed)[:1]]
    if differing:
        raise RunError(
            f"batch {batch} was begun under another configuration by a run that died: {'; '.join(differing)}. "
            "Finishing it would write some of its tables under each configuration. Restore the former configuration "
            "for this run, and change it when the batch is done"
            + (". A table that prevents this can be skipped" if may_skip else ""),
            next_job=("apply",),
        )


# Settings of a rule that affect the Delta table's layout or what is reported, but no rows.
_WITHOUT_EFFECT = {"cluster_by", "partition_by", "properties", "comment", "cdf", "on_missing_row"}

_RULE = TypeAdapter(TableRule)


def _recorded(rule: TableRule) -> dict[str, Any]:
    return {**_rule_values(rule), "given": sorted(rule.own_keys - _WITHOUT_EFFECT)}


def _with_recorded_rules(config: Config, recorded: Mapping[str, Any]) -> Config:
    """The configuration, with the rules that the ledger recorded. Version 0.1.0 only recorded `tables`."""
    return replace(
        config,
        tables=tuple(TableRule(**rule) for rule in recorded["tables"]),
        defaults=TableRule(**recorded.get("defaults", {"match": "*"})),
        rules=Rules(recorded.get("rules", Rules.FIRST)),
        include=recorded.get("include"),
    )


def _rule_values(rule: TableRule, without: frozenset[str] = frozenset()) -> dict[str, Any]:
    names = TableRule.key_fields().keys() - _WITHOUT_EFFECT - without
    values: dict[str, Any] = _RULE.dump_python(rule, mode="json", include=names)
    return values


def _is_same_rule(old: TableRule, new: TableRule, may_skip: bool) -> bool:
    pattern = frozenset({"match"})
    return (may_skip and new.skip) or _rule_values(old, pattern) == _rule_values(new, pattern)


def changes_in(
    rows: BatchRows, history: RelationHistory, windows: Mapping[int, CommitRange]
) -> dict[int, TableChanges]:
    """The changes of relations with committed rows in their windows, by OID."""
    versions = {oid: history.versions(oid) for oid in history.oids()}
    return _changes_in(rows, rows.statistics(_request(windows, versions)), windows, versions)


def _request(windows: Mapping[int, CommitRange], versions: Mapping[int, RelationVersions]) -> StatisticsRequest:
    return StatisticsRequest(windows=windows, versions={oid: known.holds_from for oid, known in versions.items()})


def _changes_in(
    rows: BatchRows,
    statistics: BatchStatistics,
    windows: Mapping[int, CommitRange],
    versions: Mapping[int, RelationVersions],
) -> dict[int, TableChanges]:
    """statistics: of the rows in the windows. A relation that nothing describes has no runs."""
    relations = statistics.relations
    runs = {
        oid: relation_spans_of_spans(counts.spans.values(), versions[oid]) if oid in versions else []
        for oid, counts in relations.items()
    }
    overlapping = [oid for oid, relation_runs in runs.items() if relation_runs is None]
    if overlapping:
        positions = rows.positions(overlapping, windows)
        runs |= {oid: relation_spans_of_rows(own, versions[oid]) for oid, own in positions.items()}
    return {oid: _changes_of(oid, counts, statistics, tuple(runs[oid] or ())) for oid, counts in relations.items()}


def _changes_of(
    oid: int, counts: RelationStatistics, statistics: BatchStatistics, runs: tuple[RelationSpan, ...]
) -> TableChanges:
    inserts, updates, deletes, truncates = (counts.tags[tag] for tag in "IUDT")
    toast, size = (frozenset(counts.unchanged), counts.moves_toast), statistics.block_sizes[oid]
    operations = (inserts, updates, deletes, truncates, counts.truncated_at)
    return TableChanges(oid, *operations, *toast, size, runs, counts.last_row)

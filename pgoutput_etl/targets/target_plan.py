"""The plan of a batch's tables, decided before anything is written and without Spark.

The plan needs only statistics of the batch's rows, counted where the rows are. So the same code decides for blocks that
Spark holds and, in tests, for thousands of random histories in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from pgoutput_etl.config.settings import Config, Mode, TableRule
from pgoutput_etl.errors import RunError
from pgoutput_etl.schema.relation_history import RelationSpan, RelationVersions
from pgoutput_etl.schema.version_spans import RowPositions, VersionSpan, relation_spans_of_rows, relation_spans_of_spans
from pgoutput_etl.targets.plan import TableChanges, TablePlan, TableState
from pgoutput_etl.targets.planner import Name, make_plan
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff, find_cutoffs
from pgoutput_etl.transactions.statistics import BatchStatistics, CommitWindow, RelationStatistics, StatisticsRequest
from pgoutput_etl.types import UserTypes


class BatchRows(Protocol):
    """A batch's message rows after assembly, including rows that waited in earlier batches."""

    def statistics(self, request: StatisticsRequest) -> BatchStatistics: ...

    def positions(self, oids: Collection[int], windows: Mapping[int, CommitWindow]) -> dict[int, RowPositions]:
        """The positions of every committed row of these relations, by OID."""
        ...


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """statistics: of all rows, as if no table were held. cutoffs: by OID, for tables that unreadable bytes hold."""

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
    """`assembly`: with the batch's files; it is told the time of the last commit. `states`: after the last batch;
    `ahead`: by OID, the commit LSN that a snapshot had brought a table to, of those past the batch's beginning.

    Raises ConfigError, RunError or SequenceError for what the batch can't be applied for.
    """
    history, user_types = assembly.relations, UserTypes.of(assembly.types.values(), config.types)
    versions = {oid: history.versions(oid) for oid in history.oids()}
    windows = {oid: CommitWindow(after=lsn) for oid, lsn in ahead.items()}
    request = StatisticsRequest(windows=windows, versions={oid: each.holds_from for oid, each in versions.items()})
    statistics = counted = rows.statistics(request)
    if statistics.last_commit is not None:
        assembly.record_commit(*statistics.last_commit)
    found = {oid: cutoff.with_paths(path_of) for oid, cutoff in find_cutoffs(assembly, statistics, states).items()}
    if found:
        windows = {
            oid: CommitWindow(ahead.get(oid, -1), found[oid].lsn if oid in found else CommitWindow().before)
            for oid in {*windows, *found}
        }
        counted = rows.statistics(replace(request, windows=windows))
    changes = table_changes(counted, versions, lambda oids: rows.positions(oids, windows))
    plan = make_plan(config, history, changes, states, user_types, cutoffs=found, ahead=ahead)
    return TargetPlan(statistics, found, plan)


def settings_of(config: Config) -> str:
    """The part of the configuration that decides which rows a batch writes where, as JSON: stored with a batch when it
    is begun."""
    origins = config.source.origins
    rules = [
        {
            "match": rule.match,
            "skip": rule.skip,
            "mode": rule.mode.value,
            "key": rule.key,
            "columns": dict(rule.columns),
            "rename": rule.rename,
        }
        for rule in config.tables
    ]
    settings = {
        "target": asdict(config.target),
        "origins": [None if origins.accepted is None else sorted(origins.accepted), sorted(origins.skipped)],
        "types": dict(config.types),
        "tables": rules,
    }
    return json.dumps(settings, sort_keys=True)


def refuse_other_settings(settings: str, config: Config, tables: Iterable[Name], batch: int) -> None:
    """Raises RunError if a batch that an earlier run began would be finished under another configuration: some of its
    tables would then be written under the one, and some under the other.

    `settings`: those that it was begun with; `tables`: all that it may write. A table may be skipped in the meantime:
    it is left behind until it is rebuilt.
    """
    then, now = json.loads(settings), json.loads(settings_of(config))
    differing = [name for name in ("target", "origins", "types") if then[name] != now[name]]
    before = replace(config, tables=tuple(_rule(rule) for rule in then["tables"]))
    named = [name for name in tables if not _is_same_rule(before.rule_for(*name), config.rule_for(*name))]
    differing += [f"tables, for {'.'.join(name)}" for name in sorted(named)[:1]]
    if differing:
        raise RunError(
            f"batch {batch} was begun by a run that died, under another configuration: {'; '.join(differing)}. Some of "
            "its tables would be written under each: set the configuration back for this run, and change it when the "
            "batch is done. A table that is in the way can be skipped"
        )


def _rule(told: Mapping[str, Any]) -> TableRule:
    key = None if told["key"] is None else tuple(told["key"])
    return TableRule(told["match"], told["skip"], Mode(told["mode"]), key, told["columns"], told["rename"])


def _is_same_rule(then: TableRule, now: TableRule) -> bool:
    if now.skip:
        return True
    of_both = [(rule.skip, rule.mode, rule.key, dict(rule.columns), rule.rename) for rule in (then, now)]
    return of_both[0] == of_both[1]


def table_changes(
    statistics: BatchStatistics,
    versions: Mapping[int, RelationVersions],
    places: Callable[[Collection[int]], Mapping[int, RowPositions]],
) -> dict[int, TableChanges]:
    """By OID, of the relations that have committed rows. `places`: of each row, where the spans don't tell the runs."""
    runs = relation_spans({oid: each.spans.values() for oid, each in statistics.relations.items()}, versions, places)
    return {oid: _changes_of(oid, each, statistics, runs[oid]) for oid, each in statistics.relations.items()}


def relation_spans(
    spans: Mapping[int, Iterable[VersionSpan]],
    versions: Mapping[int, RelationVersions],
    places: Callable[[Collection[int]], Mapping[int, RowPositions]],
) -> dict[int, tuple[RelationSpan, ...]]:
    """By OID; none where nothing describes a relation's rows."""
    found = {
        oid: relation_spans_of_spans(each, versions[oid]) if oid in versions else [] for oid, each in spans.items()
    }
    unclear = [oid for oid, runs in found.items() if runs is None]
    if unclear:
        found |= {oid: relation_spans_of_rows(each, versions[oid]) for oid, each in places(unclear).items()}
    return {oid: tuple(runs or ()) for oid, runs in found.items()}


def _changes_of(
    oid: int, found: RelationStatistics, statistics: BatchStatistics, runs: tuple[RelationSpan, ...]
) -> TableChanges:
    return TableChanges(
        oid,
        found.tags["I"],
        found.tags["U"],
        found.tags["D"],
        found.tags["T"],
        found.truncated_at,
        frozenset(found.unchanged),
        found.moves_toast,
        statistics.block_sizes[oid],
        runs,
        found.last_row,
    )

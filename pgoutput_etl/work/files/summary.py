"""The summary of an applied batch, and of a run that found nothing new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pgoutput_etl.answers.next_commands import Findings, next_commands
from pgoutput_etl.config.settings import Config, Gaps
from pgoutput_etl.landing.sequence_gaps import is_consecutive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.summary import ROW_OPERATIONS, TableSummary
from pgoutput_etl.load.writer import TableResult
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.schema.diff import ChangeKind
from pgoutput_etl.targets.column_descriptions import TargetColumn, target_columns
from pgoutput_etl.targets.condition import ConditionKind, conditions_of
from pgoutput_etl.targets.drops import dropped_names, unknown_names
from pgoutput_etl.targets.plan import TableState, may_lack_rows, snapshots_ahead
from pgoutput_etl.targets.swaps import swap_remarks
from pgoutput_etl.targets.written_settings import refuse_other_modes
from pgoutput_etl.transactions.outcome import TransactionStatus, summed_accounts
from pgoutput_etl.work.batch import World
from pgoutput_etl.work.files.batch_plan import BatchPlan
from pgoutput_etl.work.files.report import RunSummary


def summarize(
    world: World, plan: BatchPlan, results: Iterable[TableResult], accounts: Mapping[int, Mapping[str, int]]
) -> RunSummary:
    batch, assembly, files, statuses = plan.batch, plan.assembly, plan.files, plan.transactions()
    results = list(results)
    written = [result.summary for result in results if not result.is_passed_over]
    states = batch.tables | {result.state.oid: result.state for result in results}
    summary = RunSummary(
        source=world.config.source.name,
        batch=batch.number,
        files=len(batch.to_read),
        bytes=batch.size,
        last_commit_lsn=assembly.last_commit_lsn,
        messages=files.messages(),
        tables=tuple(sorted(written, key=lambda table: (table.schema, table.table))),
        open_transactions=len(assembly.open_outcomes()),
        committed_transactions=statuses[TransactionStatus.COMMITTED.value],
        resent_transactions=statuses[TransactionStatus.RESENT.value],
        aborted_transactions=statuses[TransactionStatus.ABORTED.value],
        refused_transactions=statuses[TransactionStatus.REFUSED.value],
        quarantined_transactions=statuses[TransactionStatus.QUARANTINED.value],
        unknown_prepared=len(assembly.unknown_prepared),
        commits_without_prepare=_commits_without_prepare(world, plan),
        last_commit_time=assembly.last_commit_ts,
        skipped=tuple(plan.tables.skipped),
        content_bytes=files.content_bytes(),
        accounts=summed_accounts(accounts.values()),
        damages=tuple(plan.damages()),
        files_not_read=files.not_read(),
        refused_files=files.refused(),
        logical_messages=dict(plan.targets.statistics.messages),
        ignored_catalog_messages=dict(assembly.relations.definitions.refused),
        dropped=dropped_names(world.config, assembly.relations.definitions.dropped(), states),
        unknown_definitions=unknown_names(assembly.relations, states),
        ahead=snapshots_ahead(states, assembly.last_commit_lsn),
        unpublished=world.ledger.unpublished,
        first_seen=_first_seen(batch, results),
        conditions=conditions_of(states.values(), world.config),
        verified_through=_by_name(world.ledger.verified, states),
        added_columns=_added_columns(batch, results),
        swaps=swap_remarks(states),
        columns={result.state.full_name: _columns(world.config, result) for result in results if result.columns},
    )
    return _with_next(world.config, summary)


def _by_name(lsns: Mapping[int, int], states: Mapping[int, TableState]) -> dict[str, int]:
    return dict(sorted((states[oid].full_name, lsn) for oid, lsn in lsns.items() if oid in states))


def _first_seen(batch: Batch, results: Iterable[TableResult]) -> dict[str, int]:
    new = [result.state for result in results if result.state.oid not in batch.tables]
    lsns = {s.full_name: s.complete_since.lsn for s in new if s.complete_since and may_lack_rows(s)}
    return dict(sorted(lsns.items()))


def _added_columns(batch: Batch, results: Iterable[TableResult]) -> tuple[str, ...]:
    kinds = (ChangeKind.ADDED, ChangeKind.PUBLISHED)
    existing = [result for result in results if result.state.oid in batch.tables and result.summary.held is None]
    changes = [(r.state.full_name, change) for r in existing for _, change in r.schema_changes]
    guessed = ((name, change) for name, change in changes if change.kind in kinds and not change.is_fact)
    return tuple(sorted(f"{name}.{change.column}" for name, change in guessed))


def _columns(config: Config, result: TableResult) -> tuple[TargetColumn, ...]:
    state = result.state
    former_names = config.rule_for(state.schema, state.table).lineage
    return target_columns(result.columns, state.mode, state.masks, former_names, state.path.tag)


def batch_metrics(
    seconds: Mapping[str, float], transactions: Mapping[str, int], results: Iterable[TableResult]
) -> dict[str, Any]:
    """The figures of a batch that the ledger doesn't store elsewhere. seconds: by stage. rows: number of changed rows
    per changed table, by OID."""
    summaries = {result.state.oid: result.summary for result in results}
    rows = {oid: {name: getattr(table, name) for name in ROW_OPERATIONS} for oid, table in summaries.items()}
    return {
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "transactions": {status: count for status, count in transactions.items() if count},
        "rows": {str(oid): counts for oid, counts in rows.items() if any(counts.values())},
    }


def nothing_new(world: World, last: Batch | None, remarks: Iterable[str]) -> RunSummary:
    """Reports again what earlier runs left unread (remarks) or quarantined, in case nobody read their summaries. Raises
    ConfigError if the configured mode of a table differs from the one that it was written in."""
    source = world.config.source.name
    if last is None:
        return RunSummary(source, 0, 0, 0, 0, files_not_read=tuple(remarks))
    refuse_other_modes(last.tables.values(), world.config)
    conditions = conditions_of(last.tables.values(), world.config)
    held = tuple(_held(last.tables[table.oid]) for table in conditions if table.state is ConditionKind.HELD)
    left = world.ledger.quarantine.leftovers()
    summary = RunSummary(
        source,
        last.number,
        0,
        0,
        last.last_commit_lsn,
        tables=held,
        conditions=conditions,
        verified_through=_by_name(world.ledger.verified_through(), last.tables),
        quarantined_transactions=left.transactions,
        damages=left.damages,
        files_not_read=tuple(remarks),
        refused_files=left.refused_files,
        last_commit_time=None if last.state is None else last.state.get("last_commit_ts"),
        ahead=snapshots_ahead(last.tables, last.last_commit_lsn),
        swaps=swap_remarks(last.tables),
        dropped=dropped_names(world.config, world.ledger.history.dropped(last), last.tables),
        unpublished=world.ledger.unpublished,
    )
    return _with_next(world.config, summary)


def _held(state: TableState) -> TableSummary:
    return TableSummary(state.schema, state.table, str(state.path), state.version, held=state.reason)


def found_nothing(last: RunSummary) -> RunSummary:
    """The summary of a poll that finds nothing new. last: the summary of the previous batch or poll."""
    kept = ("quarantined_transactions", "damages", "refused_files", "last_commit_time", "ahead", "conditions", "swaps")
    held = tuple(table for table in last.tables if table.held is not None)
    left = {name: getattr(last, name) for name in (*kept, "dropped", "next", "unpublished", "verified_through")}
    return RunSummary(last.source, last.batch, 0, 0, last.last_commit_lsn, tables=held, **left)


def with_refused(config: Config, summary: RunSummary, refused: Iterable[str]) -> RunSummary:
    """Adds the reasons why entries of the landing folder that no batch records can't be applied."""
    files = (*summary.refused_files, *refused)
    return summary if files == summary.refused_files else _with_next(config, replace(summary, refused_files=files))


def _with_next(config: Config, summary: RunSummary) -> RunSummary:
    findings = Findings(
        {table.name: table.held for table in summary.tables if table.held is not None},
        summary.damages,
        summary.quarantined_transactions,
        summary.refused_files,
        summary.commits_without_prepare,
        summary.ahead,
        summary.conditions,
        summary.swaps,
    )
    return replace(summary, next=next_commands(config, findings))


def _commits_without_prepare(world: World, plan: BatchPlan) -> tuple[str, ...]:
    """Commits of prepared transactions whose Prepare may be in a missing file. Before PostgreSQL 18, the Commit
    Prepared of an empty transaction looks the same; files numbered without a gap prove that none is missing."""
    unknown, batch = plan.assembly.unknown_prepared, plan.batch
    if world.config.source.gaps is not Gaps.REFUSE or not unknown:
        return ()
    paths = [path for _, path in sorted(batch.paths.items())]
    if is_consecutive([plan.path_of(batch.first_file - 1), *paths]):
        return ()
    return tuple(
        f"transaction {prepared.xid}, prepared as {prepared.gid!r} and committed at {format_lsn(prepared.commit_lsn)}: "
        "the archive has no Prepare for it. Either the transaction was empty, on a server older than PostgreSQL 18, or "
        "a file is missing"
        for prepared in unknown
    )

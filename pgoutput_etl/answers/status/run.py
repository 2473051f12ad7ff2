"""Reads the ledger and the landing folder in parallel, and assembles the report."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, time, timedelta, timezone

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.answers.next_commands import Findings, NextCommand, next_commands
from pgoutput_etl.answers.status.days import MOST_DAYS, days_of, file_counts
from pgoutput_etl.answers.status.landing_folder import FoundFiles, list_files
from pgoutput_etl.answers.status.ledger_state import (
    claim_at_work,
    complete_since,
    open_transactions,
    quarantine,
    table_states,
    unfinished,
    verified_tables,
)
from pgoutput_etl.answers.status.report import Status, UnfinishedBatch
from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.landing.selection import LEFT_UNREAD
from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.recent_batches import RecentBatches, commit_time, iso, utc
from pgoutput_etl.ledger.tables import DROPPED, dropped_in
from pgoutput_etl.targets.condition import conditions_of
from pgoutput_etl.targets.drops import dropped_names
from pgoutput_etl.targets.plan import SKIPPED, snapshots_ahead
from pgoutput_etl.targets.swaps import swap_remarks


def status(config: Config, request: StatusRequest, now: datetime | None = None) -> Status:
    """The state of a source at `now`. Raises ConfigError for storage that can't be read without Spark, and RunError if
    the ledger or the landing folder can't be read."""
    now = datetime.now(timezone.utc) if now is None else now
    reader = LedgerReader.of(config)
    first_day = datetime.combine(now.date() - timedelta(days=MOST_DAYS - 1), time(), timezone.utc)
    with ThreadPoolExecutor(6) as pool:
        listing = pool.submit(list_files, config.source.landing, config.spark)
        set_aside = pool.submit(quarantine, reader)
        batches = RecentBatches.of(reader, first_day)
        recent = [batch for batch in batches.done if utc(batch["at"]) >= first_day]
        claim = pool.submit(claim_at_work, reader, now, batches.number)
        index = pool.submit(reader.file_index, batches.since)
        waiting = pool.submit(open_transactions, reader, batches.last, batches.since)
        counts = pool.submit(file_counts, reader, recent[0]["batch"]) if recent else None
        folder = FoundFiles.of(listing.result(), index.result())
        committed, states = commit_time(batches.last), table_states(batches.last)
        lsn = 0 if batches.last is None else batches.last["last_commit_lsn"] or 0
        conditions = conditions_of(states.values(), config)
        not_skipped = [state for state in states.values() if state.status != SKIPPED]
        age = None if committed is None else (now - committed).total_seconds()
        found = Status(
            config.source.name,
            iso(now),
            batch=None if batches.last is None else batches.last["batch"],
            finished=None if batches.last is None else iso(batches.last["at"]),
            last_commit_lsn=lsn or None,
            last_commit_time=None if committed is None else iso(committed),
            commit_age_seconds=None if age is None else round(age, 3),
            is_stale=_is_stale(age, request.max_age),
            tables=len(not_skipped),
            claim=claim.result(),
            unfinished=unfinished(batches.begun, claim.result()),
            waiting=folder.waiting,
            open=waiting.result(),
            quarantine=replace(set_aside.result(), refused_files=folder.refused, unread_files=folder.unread),
            conditions=conditions,
            ahead=snapshots_ahead(states, lsn),
            complete_since=complete_since(not_skipped),
            verified_through=verified_tables(reader, states),
            swaps=swap_remarks(states),
            dropped=dropped_names(config, dropped_in(reader.rows("catalog", DROPPED, batches.since)), states),
            days=days_of(recent, {} if counts is None else counts.result()),
        )
    seems_dead = found.unfinished is not None and found.unfinished.is_dead
    if seems_dead and reader.last_done() != batches.number:
        return status(config, request, now)  # a run has closed the batch and released its claim meanwhile
    return replace(found, next=_next(config, found))


def _is_stale(age: float | None, max_age: timedelta | None) -> bool:
    """True if the age exceeds the limit. If there is no commit, the age is unknown and exceeds any limit."""
    return max_age is not None and (age is None or age > max_age.total_seconds())


def _finishing(config: Config, unfinished: UnfinishedBatch) -> NextCommand:
    if unfinished.erasure is None:
        return NextCommand("A run died inside a batch: finish it:", job_line(config, "apply"))
    line = job_line(config, "forget", "--request", "FILE", "--execute")
    return NextCommand(f"A run died inside the erasure {unfinished.erasure}: finish it with its request:", line)


def _next(config: Config, found: Status) -> tuple[NextCommand, ...]:
    """The commands that resolve the reported problems, in the order to run them."""
    steps = []
    if found.claim is None and found.unfinished is not None:
        steps.append(_finishing(config, found.unfinished))
    elif found.claim is None and found.waiting.files:
        steps.append(NextCommand("Files wait in landing: apply them:", job_line(config, "apply")))
    set_aside = found.quarantine
    findings = Findings(
        held={table.name: table.reason for table in found.held},
        damages=set_aside.ranges,
        quarantined_transactions=set_aside.transactions,
        refused_files=(*set_aside.refused_files, *(path + LEFT_UNREAD for path in set_aside.unread_files)),
        ahead=found.ahead,
        conditions=found.conditions,
        swapped=found.swaps,
    )
    return (*steps, *next_commands(config, findings))

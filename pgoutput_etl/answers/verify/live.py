"""Verifies against a server in use: queries it, and settles the answers immediately or once Delta has reached their
LSN."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.answers.verify.ask import Asking
from pgoutput_etl.answers.verify.report import VerifiedTable, VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.server_answer import ServerAnswer, answer_file, kept_answer
from pgoutput_etl.answers.verify.settle import SettledTable, Settling
from pgoutput_etl.answers.verify.tables import chosen_states, foreign_changes, mending_command, named_states
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.batch import Batch, applied
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.postgres.live_server import ask_server
from pgoutput_etl.postgres.queries import POSITION
from pgoutput_etl.spark.delta_history import is_written_by_runs
from pgoutput_etl.spark.shared_file import SharedFile
from pgoutput_etl.targets.plan import TableState

_POLL = 5.0  # seconds

_FOREIGN = (
    "other programs may have changed it since it was last found equal, also where --since doesn't look, so its "
    "verified LSN stays: verify without --since"
)

Changed = Callable[[DeltaArchive, Sequence[TableState], Progress], Mapping[int, DataFrame | None]]

Mend = Callable[[ServerAnswer, Sequence[VerifiedTable], Sequence[SettledTable]], list[VerifiedTable]]


@dataclass(frozen=True)
class LiveVerification:
    """mend: repairs settled tables and records the outcome. changed: for --since, the result as in Asking."""

    spark: SparkSession
    config: Config
    request: VerifyRequest
    ledger: DeltaLedger
    progress: Progress
    mend: Mend | None = None
    changed: Changed | None = None

    @cached_property
    def file(self) -> SharedFile:
        """The file that keeps the answer."""
        return answer_file(self.spark, self.config)

    def run(self) -> VerifySummary:
        """Raises PgoutputEtlError."""
        request = self.request
        if not request.is_live:
            return self._at_once()
        if request.begin:
            answer = self._asked()
            return self._summary(answer, answer.decided, answer, is_begun=True)
        kept = kept_answer(self.file)
        if kept is None and request.finish:
            raise RunError("the server has not been asked: run verify --begin, and --finish after the next apply")
        answer = self._asked() if kept is None else kept
        settled = self._settled(answer)
        if settled is None:
            return self._summary(answer, answer.decided, answer)
        return self._summary(answer, settled, None if kept is None or request.finish else self._asked())

    def _at_once(self) -> VerifySummary:
        last = self._last()
        answer = self._answer(last)
        settled = Settling(self._archive(last), answer, self.request, self.progress).run()
        [after] = ask_server(self.request.url, POSITION)
        lsns = (format_lsn(answer.lsn), str(after["lsn"]))
        reached = last.last_commit_lsn
        return replace(self._summary(replace(answer, lsn=reached, through=reached), settled, None), server_lsns=lsns)

    def _last(self) -> Batch:
        return applied(self.ledger.batches.last(), self.ledger.source)

    def _archive(self, last: Batch) -> DeltaArchive:
        return DeltaArchive.of(self.spark, self.config, self.ledger, last)

    def _asked(self) -> ServerAnswer:
        answer = self._answer(self._last())
        self.file.replace(answer.to_json())
        return answer

    def _answer(self, last: Batch) -> ServerAnswer:
        states = chosen_states(self.config, last.tables, self.request.tables)
        archive, changed = self._archive(last), self.changed if self.request.since else None
        keys = {} if changed is None else changed(archive, states, self.progress)
        return Asking(archive, self.request, states, keys, self.progress).run()

    def _settled(self, answer: ServerAnswer) -> list[VerifiedTable] | None:
        """The tables, compared as of the answer's LSN. None if no apply has passed it, even after --wait."""
        wait = self.request.wait
        end, shown = time.monotonic() + (0.0 if wait is None else wait.total_seconds()), -1
        while answer.is_open and (last := self._last()).last_commit_lsn < answer.lsn:
            if time.monotonic() >= end:
                return None
            if last.last_commit_lsn != shown:
                shown = last.last_commit_lsn
                self.progress(f"waiting for LSN {format_lsn(answer.lsn)}; {format_lsn(shown)} has been applied")
            time.sleep(_POLL)
        settling = Settling(self._archive(self._last()), answer, self.request, self.progress)
        settled = settling.run()
        if self.mend is not None:
            settled = self.mend(answer, settled, settling.found)
        self.file.delete()
        return settled

    def _summary(
        self,
        answer: ServerAnswer,
        tables: Sequence[VerifiedTable],
        left: ServerAnswer | None,
        is_begun: bool = False,
    ) -> VerifySummary:
        """left: the answer that the next run will settle."""
        last = self._last()
        named = named_states(self.config, last.tables)
        equal = [t for t in tables if t.is_equal and t.full_name in named]
        bases = self.ledger.verified_states() if any(table.ranges_skipped for table in equal) else {}
        foreign = [t for t in equal if t.ranges_skipped and not self._is_own(bases, named[t.full_name])]
        oids = [named[table.full_name].oid for table in equal if table not in foreign]
        self.ledger.record_verified(answer.batch, oids, answer.through)
        compared = [named[t.full_name] for t in tables if t.why_not is None and t.full_name in named]
        differing = [named[t.full_name] for t in tables if t.is_different and t.full_name in named]
        return VerifySummary(
            self.config.source.name,
            answer.against,
            answer.lsn,
            tuple(sorted(tables, key=lambda table: (table.schema, table.table))),
            remarks=(
                *(remark for state in compared if (remark := foreign_changes(self.spark, state)) is not None),
                *(f"{table.name}: {_FOREIGN}" for table in foreign),
            ),
            next_command=mending_command(differing, answer.against, self.config),
            asked=None if left is None else left.asked,
            is_decided=is_begun or left is not answer,
        )

    def _is_own(self, bases: Mapping[int, TableState], state: TableState) -> bool:
        """True if only runs of this package have changed the table since it was last found equal."""
        base = bases.get(state.oid)
        return base is not None and is_written_by_runs(self.spark, state.path, base.version, state.version)

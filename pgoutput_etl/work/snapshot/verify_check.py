"""Checks what a verify of a server needs, and how exact its moment would be."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import SparkSession

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.postgres.source_server import SourceServer
from pgoutput_etl.work.snapshot.check_report import CheckReport
from pgoutput_etl.work.snapshot.checks import NOTE, OK, PROBLEM, Check, Checklist
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.steps import Commands, LoadStep


def check_verify(spark: SparkSession, config: Config, request: VerifyRequest) -> CheckReport:
    """Reads only catalogs, and the ledger. Raises PgoutputEtlError."""
    from pgoutput_etl.postgres.live_server import source_server  # needs psycopg, from an extra

    request.check()
    server, tables = source_server(request.url), request.tables or ("*.*",)
    read = SnapshotRequest(tables, server=request.url, publications=request.publications)
    commands = Commands(config, read, server.version, server.is_standby)
    checks = [*Checklist(server, read, None, commands).of_verify()]
    checks += _of_standby(request.url) if server.is_standby else []
    checks += _of_archive(DeltaLedger.of(spark, config), server)
    verify = job_line(config, "verify", "--server", request.url)
    steps = [*(step for check in checks for step in check.steps), LoadStep("ask, and settle what was asked", verify)]
    return CheckReport(config.source.name, tuple(checks), tuple(steps))


def _of_standby(url: str) -> Iterator[Check]:
    from pgoutput_etl.postgres.live_server import replay_of

    replay = replay_of(url)
    if replay.is_paused:
        yield Check(OK, "replay", f"paused at {format_lsn(replay.lsn)}, which is then exactly the LSN of the rows")
    elif replay.is_still:
        text = f"stands still at {format_lsn(replay.lsn)}, but is not paused: verify waits until it does again"
        yield Check(NOTE, "replay", text)
    else:
        pause = "run SELECT pg_catalog.pg_wal_replay_pause() there, and pg_wal_replay_resume() once verify has asked"
        yield Check(PROBLEM, "replay", f"advances all the time, now {format_lsn(replay.lsn)}: {pause}")


def _of_archive(ledger: DeltaLedger, server: SourceServer) -> Iterator[Check]:
    try:
        last = applied(ledger.batches.last(), ledger.source)
    except RunError as error:
        yield Check(PROBLEM, "archive", str(error))
        return
    reached, now = format_lsn(last.last_commit_lsn), format_lsn(server.lsn)
    if last.last_commit_lsn >= server.lsn:
        yield Check(OK, "archive", f"its last commit, {reached}, has passed {now}: verify settles at once")
        return
    then = "the primary's next commit" if server.is_standby else "a commit that verify makes"
    text = f"its last commit is {reached}, before {now}: verify settles once {then} has been applied"
    yield Check(NOTE, "archive", text)

"""The status of a source from a ledger and a landing folder, without Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pgoutput_etl.answers.status import landing_folder, run
from pgoutput_etl.answers.status.ledger_state import claim_at_work
from pgoutput_etl.answers.status.report import ActiveRun, Status, WaitingFiles, print_status
from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.cli import main
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import LandedFile
from pgoutput_etl.ledger.claims import LEASE
from pgoutput_etl.ledger.reader import LedgerReader
from pgoutput_etl.ledger.tables import FORMAT, table_row
from pgoutput_etl.machine import Process
from pgoutput_etl.places import Place
from pgoutput_etl.reasons import TORN
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.plan import CompleteSince, Since
from pgoutput_etl.timestamps import parse_duration
from tests.core.targets.test_planner import state_of
from tests.support.small_archives import table
from tests.support.small_ledger import SmallLedger, state

ROOT = Path(__file__).parents[4]
NOW = datetime(2026, 3, 2, 9, 0, tzinfo=timezone.utc)
NIGHT = NOW.replace(hour=2)
REASON = "Insert.relation at byte 1: expected the OID of a relation, found 0"


@pytest.fixture
def ledger(tmp_path: Path) -> SmallLedger:
    return SmallLedger(tmp_path)


def found(ledger: SmallLedger, request: StatusRequest | None = None, *overrides: str) -> Status:
    return status(ledger.config(*overrides), request or StatusRequest(), NOW)


def printed(report: Status) -> str:
    text = StringIO()
    print_status(report, Console(file=text, width=200))
    return text.getvalue()


def claim(ledger: SmallLedger, batch: int, at: datetime, process: Process, status: str = "claimed") -> None:
    who = {"machine": process.machine, "pid": process.pid, "started": process.started}
    ledger.add("claims", {"batch": batch, "attempt": 1, "run": "r", "status": status, "at": at, **who})


ELSEWHERE = Process("other-host boot pid:[1]", 7, 70)


def test_without_a_ledger_nothing_was_applied(ledger: SmallLedger) -> None:
    ledger.land("1.bin", 10)
    report = found(ledger)
    assert (report.batch, report.exit_code, report.waiting.files) == (None, 0, 1)
    [command] = (step.command for step in report.next)
    assert command.endswith(f"--config {ledger.folder}/job.yaml")
    assert "apply" in command
    assert printed(report).startswith("shop: nothing applied yet.\n")


def test_the_last_batch_and_the_age_of_its_commit(ledger: SmallLedger) -> None:
    ledger.begin(1, NIGHT - timedelta(days=1))
    ledger.finish(1, NIGHT - timedelta(days=1), 0x100, [state(1, "t", 5)])
    ledger.finish(2, NIGHT, 0x200, [state(1, "t", 7), state(2, "u", None)])
    report = found(ledger)
    assert (report.batch, report.finished, report.lsn) == (2, "2026-03-02T02:00:00+00:00", "0/200")
    assert report.last_commit_time == "2026-03-02T01:59:00+00:00"
    assert report.commit_age_seconds == 7 * 3600 + 60
    assert (report.tables, report.exit_code, report.next) == (2, 0, ())
    assert "Last commit: 0/200, 2026-03-02 01:59:00 UTC, 7 h 1 min ago." in printed(report)
    assert "All tables are consistent through LSN 0/200." in printed(report)


@pytest.mark.parametrize(("age", "code"), [("7h", 3), ("8h", 0), ("420m", 3), ("1d", 0)])
def test_a_commit_older_than_the_limit_is_stale(ledger: SmallLedger, age: str, code: int) -> None:
    ledger.finish(1, NIGHT, 0x100)
    report = found(ledger, StatusRequest(parse_duration(age)))
    assert (report.is_stale, report.exit_code) == (code == 3, code)


def test_tables_that_others_seem_to_be_renamed_to(ledger: SmallLedger) -> None:
    def stored(oid: int, name: str, lsn: int, folder: str = "public") -> dict[str, Any]:
        path = f"{ledger.folder}/tables/{folder}/{oid}"
        return table_row(
            replace(
                state_of(table(oid=oid, name=name)),
                oid=oid,
                path=Place(path),
                last_row=(lsn, 0, 0),
                last_commit_lsn=lsn,
            )
        )

    copy = stored(2, "t_new", 0x20, "_pgoutput_etl/displaced/shop")
    ledger.finish(1, NIGHT, 0x100, [stored(1, "t", 0x10), copy, stored(3, "t_new", 0x30)])
    report = found(ledger)
    assert (report.exit_code, report.problems) == (3, ("1 table possibly replaced",))
    assert "Possibly replaced: public.t has had no change since LSN 0/10, while tables named public.t_new" in printed(
        report
    )
    assert "All tables but public.t (possibly replaced) are consistent" in printed(report)
    [command] = (step.command for step in report.next)
    assert " --tables public.t --server postgresql://HOST:5432/DATABASE" in command
    ledger.finish(2, NIGHT, 0x200, [stored(1, "t", 0x110), copy, stored(3, "t_new", 0x30)])
    assert found(ledger).exit_code == 0


def test_no_commit_at_all_is_older_than_any_limit(ledger: SmallLedger) -> None:
    assert found(ledger, StatusRequest(timedelta(days=9))).exit_code == 3


@pytest.mark.parametrize("text", ["", "7", "h", "1w", "-1h", "1.5h", "999999d"])
def test_a_duration_has_one_unit(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_new_and_grown_files_wait(ledger: SmallLedger) -> None:
    known, grown, touched = (ledger.land(f"{i}.bin", 10) for i in (1, 2, 3))
    for path in (known, grown, touched):
        ledger.read(1, path)
    ledger.finish(1, NIGHT, 0x100)
    assert found(ledger).waiting == WaitingFiles()
    ledger.land("4.bin", 100)
    grown.write_bytes(b"y" * 16)
    os.utime(ledger.land("5.bin", 1000), (1772400000, 1772400000))
    for hidden in (".6.bin", "_7.bin"):
        ledger.land(hidden, 10)
    ledger.land("empty.bin", 0)
    waiting = found(ledger).waiting
    assert waiting == WaitingFiles(3, 1106, "2026-03-01T21:20:00+00:00")


def test_files_in_the_ledger_under_other_batches_and_sources_do_not_count(ledger: SmallLedger) -> None:
    path = ledger.land("1.bin", 10)
    other = SmallLedger(ledger.folder, source="other")
    other.read(1, path)
    other.finish(1, NIGHT, 0x900)
    report = found(ledger)
    assert (report.batch, report.waiting.files) == (None, 1)
    ledger.read(1, path)
    ledger.finish(3, NIGHT, 0x100)
    ledger.add("batches", {"batch": 4, "status": "done", "at": NIGHT, "last_commit_lsn": 0x100, "since": 2})
    assert found(ledger).waiting.files == 1, "of rows before `since`"


def test_a_claim_of_another_machine_is_at_work_until_its_lease_ends(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x100)
    ledger.begin(2, NOW - timedelta(minutes=9), [{"file": 0, "path": "a"}, {"file": 1, "path": "b"}])
    claim(ledger, 2, NOW - timedelta(minutes=10), ELSEWHERE)
    claim(ledger, 2, NOW - timedelta(minutes=1), ELSEWHERE, "renewed")
    report = found(ledger)
    assert report.claim is not None
    assert report.claim.since == "2026-03-02T08:50:00+00:00"
    assert report.claim.renewed == "2026-03-02T08:59:00+00:00"
    assert report.unfinished is not None
    assert (report.unfinished.batch, report.unfinished.files, report.unfinished.is_dead) == (2, 2, False)
    assert (report.exit_code, report.next) == (0, ())
    assert "Run at work: batch 2, process 7 of other-host, since 2026-03-02 08:50:00 UTC, 10 min ago." in printed(
        report
    )

    later = status(ledger.config(), StatusRequest(), NOW + LEASE)
    assert (later.claim, later.exit_code) == (None, 3)
    assert later.unfinished is not None
    assert later.unfinished.is_dead
    assert "apply" in later.next[0].command


def test_an_erasure_is_finished_by_its_own_job(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x100)
    ledger.begin(2, NOW, backfill='{"erasure": {"reference": "DSR-7"}}')
    report = found(ledger)
    assert report.exit_code == 3
    assert "the erasure DSR-7, begun" in printed(report)
    assert "its run is dead, and jobs/forget.py finishes it with its request" in printed(report)
    assert " forget --config" in report.next[0].command


def test_a_released_claim_and_a_gone_process_are_not_at_work(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x100)
    claim(ledger, 1, NOW - timedelta(seconds=5), ELSEWHERE)
    claim(ledger, 1, NOW - timedelta(seconds=4), ELSEWHERE, "released")
    assert found(ledger).claim is None
    here = Process.current()
    claim(ledger, 2, NOW, Process(here.machine, 2**22 + 1, 5))
    assert found(ledger).claim is None
    claim(ledger, 3, NOW, here)
    report = found(ledger)
    assert report.claim is not None
    assert report.claim.process == str(here)


def test_a_batch_that_is_closed_during_the_report_is_not_dead(
    ledger: SmallLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.finish(1, NIGHT, 0x100)
    ledger.begin(2, NOW)

    def meanwhile(reader: LedgerReader, now: datetime, last_done: int) -> ActiveRun | None:
        if last_done == 1:
            ledger.finish(2, NOW, 0x200)
        return claim_at_work(reader, now, last_done)

    monkeypatch.setattr(run, "claim_at_work", meanwhile)
    report = found(ledger)
    assert (report.batch, report.unfinished, report.exit_code) == (2, None, 0)


def test_a_volume_has_the_paths_that_databricks_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        landing_folder, "list_local", lambda _: Listing.of([LandedFile("/Volumes/main/a/1.bin", 1, 1_234_567)])
    )
    monkeypatch.delenv("DATABRICKS_RUNTIME_VERSION", raising=False)
    [elsewhere] = landing_folder.list_files("/Volumes/main/a", {}).files()
    assert elsewhere == LandedFile("file:/Volumes/main/a/1.bin", 1, 1_234_000)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    [file] = landing_folder.list_files("/Volumes/main/a", {}).files()
    assert file.path == "dbfs:/Volumes/main/a/1.bin"


def test_open_transactions_have_the_bytes_of_their_rows(ledger: SmallLedger) -> None:
    stream = {"xid": 9, "units": [[0, 1], [1, 0]], "gid": None, "scope": None}
    ledger.finish(1, NIGHT, 0x100, streams=[_transaction(**stream)], prepared=[_transaction(xid=8, units=[[1, 5]])])
    rows = [(0, 1, 10, 30), (1, 0, 0, 5), (1, 5, 100, 101), (0, 7, 0, 1000)]
    ledger.add("open_transactions", *({"batch": 1, "file": f, "unit": u, "begin": b, "end": e} for f, u, b, e in rows))
    report = found(ledger)
    assert (report.open.transactions, report.open.bytes, report.exit_code) == (2, 26, 0)


def _transaction(**fields: Any) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "gid": None,
        "scope": None,
        "aborted_subxids": [],
        "lsn": None,
        "damage": None,
        "lost": [],
    }
    return {**defaults, "origin": None, "origin_lsn": None, **fields}


def set_aside(ledger: SmallLedger, *rows: dict[str, Any]) -> None:
    ledger.add("quarantine", *({"batch": 1, "file": 0, "path": "/a/0.bin", "reason": REASON, **row} for row in rows))


def test_quarantine_counts_each_byte_once_and_leaves_out_redriven_rows(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x100)
    in_words = f"transaction 5 is in quarantine: {REASON}"
    set_aside(
        ledger,
        {"offset": 100, "length": 20},
        {"offset": 90, "length": 60, "xid": 5, "lsn": 7, "reason": in_words},
        {"file": 1, "offset": 0, "length": 9, "xid": 5, "lsn": 7, "reason": in_words},
        {"offset": 1000, "length": 5, "reason": REASON + TORN},
        {"offset": 2000, "length": 5, "redriven": 2},
        {"relation": 1, "reason": "held"},
    )
    report = found(ledger)
    aside = report.quarantine
    assert (aside.bytes, aside.transactions, aside.resent_bytes) == (69, 1, 5)
    assert aside.ranges == (f"/a/0.bin: 20 bytes at offset 100: {REASON}",)
    assert report.exit_code == 3
    assert report.next[-1].command.endswith("--from-quarantine")


def test_bytes_that_were_sent_again_need_no_action(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x100)
    set_aside(ledger, {"offset": 1000, "length": 5, "reason": REASON + TORN})
    report = found(ledger)
    assert (report.exit_code, report.quarantine.resent_bytes, report.next) == (0, 5, ())


def test_held_tables_have_their_commit_reason_and_command(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x200, [state(1, "t", 5), state(2, "odd", 5, lsn=0x100, reason="its columns changed")])
    report = found(ledger)
    [held] = report.held
    assert (held.name, held.lsn, held.reason) == ("public.odd", 0x100, "its columns changed")
    assert report.exit_code == 3
    assert report.next[0].command.endswith("--from-quarantine")
    text = printed(report)
    assert text.startswith("shop: 1 table held.\n")
    assert "All tables but public.odd (held) are consistent through LSN 0/200." in text
    assert "0/100" in text


FIRST, SNAPSHOT = CompleteSince(Since.FIRST_CHANGE, 0x80), CompleteSince(Since.SNAPSHOT, 0x90)


def test_diverged_and_incomplete_tables_have_their_reason_and_command(ledger: SmallLedger) -> None:
    found_at = Mismatches(3, 1, 0x180, 741)
    tables = [
        state(1, "t", 5, complete_since=SNAPSHOT),
        state(2, "odd", 5, complete_since=SNAPSHOT, mismatches=found_at),
        state(3, "part", 5, complete_since=FIRST),
    ]
    ledger.finish(1, NIGHT, 0x200, tables)
    report = found(ledger)
    assert [(c.name, c.state.value, c.mismatches) for c in report.conditions] == [
        ("public.odd", "diverged", found_at),
        ("public.part", "incomplete", None),
    ]
    assert (report.exit_code, report.held) == (3, ())
    assert [step.command.split(" --tables ")[1] for step in report.next] == [
        "public.odd --server postgresql://HOST:5432/DATABASE --repair",
        "public.part --server postgresql://HOST:5432/DATABASE",
    ]
    text = printed(report)
    assert text.startswith("shop: 1 table diverged; 1 table incomplete.\n")
    assert "Diverged: public.odd: 3 UPDATEs or DELETEs met no row and 1 change gave" in text
    assert "Incomplete: earlier rows, if there were any, are missing: public.part." in text
    assert "All tables but public.odd (diverged), public.part (incomplete) are consistent through LSN 0/200." in text
    fields = json.loads(report.to_json())
    assert [(c["table"], c["state"]) for c in fields["conditions"]] == [("odd", "diverged"), ("part", "incomplete")]
    assert fields["problems"] == ["1 table diverged", "1 table incomplete"]


def test_what_the_configuration_accepts_is_no_problem(ledger: SmallLedger) -> None:
    incomplete, diverged = state(1, "t", 5, complete_since=FIRST), state(2, "odd", 5, mismatches=Mismatches(0, 1, 1, 7))
    ledger.finish(1, NIGHT, 0x200, [incomplete])
    accepted = found(ledger, None, "source.snapshot=accept")
    assert (found(ledger).exit_code, accepted.exit_code, accepted.conditions) == (3, 0, ())
    assert "All tables are consistent through LSN 0/200." in printed(accepted)
    ledger.finish(2, NIGHT, 0x300, [diverged])
    assert found(ledger, None, "source.snapshot=accept").exit_code == 3
    for rule in ("on_missing_row: ignore", "skip: true"):
        assert found(ledger, None, f"tables=[{{match: public.odd, {rule}}}]").exit_code == 0


def test_a_table_that_is_ahead_is_not_consistent_with_the_others(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x200, [state(1, "t", 5), state(2, "new", 5, lsn=0x2FF, complete_since=SNAPSHOT)])
    report = found(ledger)
    assert (report.ahead, report.exit_code) == ({"public.new": 0x300}, 0)
    assert "All tables but public.new (ahead) are consistent through LSN 0/200." in printed(report)
    assert "land the archive through LSN 0/300" in report.next[0].reason


def test_a_refused_file_counts_until_it_is_put_right(ledger: SmallLedger) -> None:
    path = ledger.land("1.bin", 10)
    ledger.read(1, path, consumed=0, status="refused", reason="1.bin was read before and has other content now")
    ledger.finish(1, NIGHT, 0x100)
    report = found(ledger)
    assert report.quarantine.refused_files == ("1.bin was read before and has other content now",)
    assert report.exit_code == 3
    path.write_bytes(b"restored")
    report = found(ledger)
    assert (report.quarantine.refused_files, report.exit_code, report.waiting.files) == ((), 0, 1)


def test_a_file_left_unread_before_later_files_is_reported(ledger: SmallLedger) -> None:
    ledger.read(1, ledger.land("1.bin", 10), consumed=0, unfinished=True)
    ledger.finish(1, NIGHT, 0x100)
    assert found(ledger).exit_code == 0
    ledger.read(2, ledger.land("2.bin", 10))
    ledger.finish(2, NIGHT, 0x200)
    report = found(ledger)
    assert report.quarantine.unread_files == (f"file:{ledger.landing}/1.bin",)
    assert report.exit_code == 3


def test_a_ledger_of_an_older_version_lacks_columns(ledger: SmallLedger) -> None:
    old = ("metrics", "settings", "since", "backfill", "format")
    ledger.finish(1, NIGHT - timedelta(days=1), 0x100, [state(1, "t", None)], without=old, last_commit_ts=None)
    columns = {"batch": 1, "file": 0, "path": "file:/gone/1.bin", "size": 10, "modified": NIGHT, "messages": {"B": 1}}
    later = ("status", "offset", "consumed", "prefix_hash", "distinctive", "varied", "head", "same_as", "unfinished")
    ledger.add("files", columns, without=[*later, "reason", "framing", "begins_in_stream", "ends_in_stream"])
    report = found(ledger)
    assert (report.batch, report.last_commit_time, report.exit_code) == (1, None, 0)
    [night] = report.days
    assert (night.files, night.bytes, night.messages, night.seconds, night.lag_seconds) == (1, 10, 1, {}, None)
    assert night.tables[0].changed is None

    ledger.finish(2, NIGHT, 0x200, [state(1, "t", 3)], {"seconds": {"write": 2.0}, "transactions": {}, "rows": {}})
    first, second = found(ledger).days
    assert (first.seconds, second.seconds, second.lag_seconds) == ({}, {"write": 2.0}, 60.0)
    assert second.tables[0].changed == 0


def test_a_ledger_of_a_newer_version_is_refused(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x100, [], format=FORMAT + 1)
    with pytest.raises(RunError, match=f"the ledger has format {FORMAT + 1}"):
        found(ledger)


def test_a_day_sums_its_batches(ledger: SmallLedger) -> None:
    metrics = {
        "seconds": {"look": 1.0, "write": 2.5},
        "transactions": {"committed": 3},
        "rows": {"1": {"inserted": 5, "updated": 2, "deleted": 1}},
    }
    for batch, hour in ((1, 1), (2, 2), (3, 26)):
        ledger.read(batch, ledger.land(f"{batch}.bin", 100 * batch))
        ended = NIGHT.replace(hour=0) + timedelta(hours=hour - 24)
        ledger.finish(batch, ended, batch * 0x100, [state(1, "t", 10 * batch)], metrics)
    first, second = found(ledger).days
    assert (first.day, first.batches, first.files, first.bytes, first.messages) == ("2026-03-01", 2, 2, 300, 8)
    assert first.seconds == {"look": 2.0, "write": 5.0}
    [table] = first.tables
    assert (table.rows, table.inserted, table.updated, table.deleted, table.changed) == (20, 10, 4, 2, 16)
    assert (second.day, second.batches, second.bytes) == ("2026-03-02", 1, 300)


def test_a_redrive_lands_nothing_and_replaces_what_was_open(ledger: SmallLedger) -> None:
    path, stream = ledger.land("1.bin", 100), _transaction(xid=9, units=[[0, 1]])
    ledger.read(1, path)
    ledger.finish(1, NIGHT, 0x100, streams=[stream])
    row = {"file": 0, "unit": 1, "begin": 10, "end": 30}
    ledger.add("open_transactions", {"batch": 1, **row}, {"batch": 2, **row})
    ledger.read(2, path)
    ledger.finish(2, NIGHT, 0x100, backfill="{}", since=2, streams=[stream])
    report = found(ledger)
    assert (report.open.transactions, report.open.bytes) == (1, 20)
    [night] = report.days
    assert (night.batches, night.files, night.bytes) == (2, 1, 100)


def test_older_days_are_left_out(ledger: SmallLedger) -> None:
    for days in (40, 30, 29, 1):
        ledger.finish(50 - days, NIGHT - timedelta(days=days), 0x100)
    assert [own.day for own in found(ledger).days] == ["2026-02-01", "2026-03-01"]


def test_tables_that_were_found_equal(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x200, [state(1, "t", 5), state(2, "odd", 5), state(3, "part", 5)])
    assert found(ledger).verified_through == {}
    ledger.add(
        "verifications", *({"batch": 1, "oid": oid, "lsn": lsn} for oid, lsn in ((1, 7), (2, 9), (1, 8), (9, 1)))
    )
    report = found(ledger)
    assert report.verified_through == {"public.odd": "0/9", "public.t": "0/8"}
    assert "Found equal to the server's: 2 tables of 3, through LSN 0/8 or later." in printed(report)


def test_json_has_the_same(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x200, [state(1, "odd", 5, lsn=0x100, reason="why")])
    report = found(ledger)
    fields = json.loads(report.to_json())
    assert (fields["batch"], fields["lsn"], fields["exit_code"]) == (1, "0/200", 3)
    assert fields["problems"] == ["1 table held"]
    assert fields["held"] == [{"schema": "public", "table": "odd", "lsn": 0x100, "reason": "why"}]
    assert fields["days"][0]["day"] == "2026-03-02"


def test_a_missing_landing_folder_is_a_mistake_in_the_configuration(ledger: SmallLedger) -> None:
    with pytest.raises(ConfigError, match=r"source\.landing: .*/none does not exist"):
        status(ledger.config(landing=str(ledger.folder / "none")), StatusRequest(), NOW)


def test_the_landing_folder_may_be_a_glob(ledger: SmallLedger) -> None:
    for name in ("a1.bin", "a2.bin", "b1.bin"):
        ledger.land(name, 10)
    (ledger.landing / "sub").mkdir()
    ledger.land("sub/a3.bin", 10)
    config = ledger.config(landing=f"{ledger.landing}/{{a*,sub}}")
    assert status(config, StatusRequest(), NOW).waiting.files == 3


def test_a_damaged_ledger_can_not_be_read(ledger: SmallLedger) -> None:
    ledger.finish(1, NIGHT, 0x100)
    for file in Path(ledger.root, "batches").glob("*.parquet"):
        file.write_bytes(b"not parquet")
    with pytest.raises(RunError, match="the ledger's table batches can't be read: "):
        found(ledger)


@pytest.mark.parametrize("key", ["state.root", "source.landing"])
def test_storage_that_only_spark_reads_is_refused(ledger: SmallLedger, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key}: abfss:// can't be read without Spark"):
        found(ledger, StatusRequest(), f"{key}=abfss://a@b.dfs.core.windows.net/c")


def test_a_page_needs_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none" / "a.html"):
        with pytest.raises(ConfigError, match="--html: expected a file in an existing folder"):
            StatusRequest(html=str(path)).check()


def test_the_job_imports_no_spark_and_changes_nothing(ledger: SmallLedger, tmp_path: Path) -> None:
    ledger.finish(1, NIGHT, 0x100, [state(1, "t", 5)])
    ledger.config()
    before = ledger.versions()
    script = (
        "import runpy, sys\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n    print(sorted(m for m in sys.modules if m.split('.')[0] in ('pyspark', 'delta', 'py4j')))"
    )
    job = str(ROOT / "jobs" / "status.py")
    arguments = ["--config", str(tmp_path / "job.yaml"), "--html", str(tmp_path / "page.html")]
    command = [sys.executable, "-c", f"import sys; sys.argv = {[job, *arguments]!r}\n{script}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "shop: nothing is held or in quarantine."
    assert done.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert ledger.versions() == before
    assert not list(tmp_path.glob(".*"))


def test_only_the_page_needs_the_extra_for_charts(ledger: SmallLedger, tmp_path: Path) -> None:
    ledger.finish(1, NIGHT, 0x100, [state(1, "t", 5)])
    ledger.config()
    without = (
        "import sys; sys.modules['matplotlib'] = None\nfrom pgoutput_etl.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", without, "status", "--config", str(tmp_path / "job.yaml")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    page = [*command, "--html", str(tmp_path / "page.html")]
    refused = subprocess.run(page, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "has no module matplotlib: pip install 'pgoutput-etl[reports]'" in refused.stderr


def test_the_installed_command_has_the_job(ledger: SmallLedger, capsys: pytest.CaptureFixture[str]) -> None:
    ledger.finish(1, NIGHT, 0x200, [state(1, "odd", 5, reason="why")])
    ledger.config()
    assert main(["status", "--config", str(ledger.folder / "job.yaml"), "--json", "--max-age", "1h"]) == 3
    fields = json.loads(capsys.readouterr().out)
    assert fields["problems"] == ["1 table held", "the last commit is too old"]

"""Inspections: figures that equal the replay's, damaged archives, and messages as lines."""

from __future__ import annotations

import bz2
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from pgoutput_etl import jit
from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.inspection import local_runner
from pgoutput_etl.inspection.archive import Inspection, inspect_archive, inspection_contexts
from pgoutput_etl.inspection.local_runner import LocalRunner, is_local, list_local
from pgoutput_etl.inspection.message_lines import MessageFilter
from pgoutput_etl.inspection.report import report_on
from pgoutput_etl.inspection.report_model import ArchiveReport
from pgoutput_etl.protocol.framing import Framing, detect
from pgoutput_etl.protocol.messages import Begin, Commit, Message, Origin
from pgoutput_etl.timestamps import microseconds_of, parse_time
from pgoutput_etl.transactions.outcome import TransactionStatus
from tests.archives.test_replay import ARCHIVES, landed
from tests.support.captures import DATA, files_of
from tests.support.replays import replay_of
from tests.support.small_archives import (
    Messages,
    commit_prepared,
    copydata,
    delete,
    in_subtransaction,
    insert,
    prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

ROOT = Path(__file__).parents[3]
JOB = ROOT / "jobs" / "inspect.py"
V2 = DATA / "pg16" / "v2_stream"


def inspected(paths: Iterable[Path], processes: int = 1) -> ArchiveReport:
    return report_on(inspect(paths, processes)[0])


def inspect(
    paths: Iterable[Path], processes: int = 1, wanted: MessageFilter | None = None, values: bool = False
) -> tuple[Inspection, list[str]]:
    lines: list[str] = []
    with TemporaryDirectory() as folder, LocalRunner(Path(folder), Framing.AUTO, processes) as runner:
        inspection = inspect_archive(list_local(map(str, paths)), runner, lambda _: None)
        if wanted is not None:
            runner.print_messages(inspection_contexts(inspection, wanted, values, False), lines.append)
    return inspection, lines


def lines_of(landing: Path, values: bool = False, **wanted: object) -> list[str]:
    return inspect([landing], wanted=MessageFilter(**wanted), values=values)[1]  # type: ignore[arg-type]


def land(folder: Path, *files: Messages, first: int = 0) -> Path:
    for number, messages in enumerate(files, start=first):
        (folder / f"{number:03}.copydata").write_bytes(copydata(messages))
    return folder


@pytest.mark.parametrize("name", ["pg16-v3_twophase", "pg16-recv.bin", "pg14-v2_stream", "random16-v1"])
def test_figures_equal_the_replays(name: str) -> None:
    assert_equals_replay([path for files, _ in ARCHIVES[name] for path in files])


@pytest.mark.soak
@pytest.mark.parametrize("name", ARCHIVES)
def test_figures_of_every_archive_equal_the_replays(name: str) -> None:
    assert_equals_replay([path for files, _ in ARCHIVES[name] for path in files])


def assert_equals_replay(files: list[Path]) -> None:
    report, replay = inspected(files), replay_of(*files)
    committed = Counter((row["relation"], row["tag"]) for row in replay.committed())
    assert {(r.oid, tag): n for r in report.relations for tag, n in r.committed.items() if n} == committed
    transactions = {row["commit_lsn"] for row in replay.committed()}
    empty = report.transactions["committed"] - len(transactions)
    assert empty == report.sizes.get("0", 0), "transactions without a change"
    statuses = Counter(outcome.status for outcome in replay.assembly.outcomes)
    assert report.transactions["aborted"] == statuses[TransactionStatus.ABORTED]
    assert report.transactions["open"] == len(replay.assembly.open_outcomes())
    if "T" not in report.messages:
        changes = sum(report.messages.get(tag, 0) for tag in "IUD")
        assert changes == sum(n for r in report.relations for n in (*r.others.values(), *r.committed.values()))
    known = {r.oid: [v.columns for v in r.versions] for r in report.relations}
    for entry in replay.assembly.relations.entries:
        names = tuple(column.name for column in entry.relation.columns)
        assert names in [tuple(c.name for c in columns) for columns in known[entry.relation.oid]]
    content = sum(len(decompress(path.read_bytes(), str(path))) for path in files)
    assert (report.content_bytes, sum(report.accounts.values())) == (content, content)
    assert not report.is_damaged
    assert not report.remarks


@pytest.mark.parametrize(
    ("slot", "protocol", "server", "values"),
    [
        ("pg10/v1", "1, or a newer one without its features in use", "PostgreSQL 10 or newer", "text"),
        ("pg14/v2_stream", "2 or newer", "PostgreSQL 14 or newer", "text"),
        ("pg16/v3_twophase", "3 or newer", "PostgreSQL 15 or newer", "text"),
        ("pg16/v4_twophase_parallel_binary", "4", "PostgreSQL 16 or newer", "binary"),
    ],
)
def test_inferred_protocol_server_and_settings(slot: str, protocol: str, server: str, values: str) -> None:
    report = inspected(files_of(DATA / slot))
    assert (report.protocol, report.server, list(report.settings["values"])) == (protocol, server, [values])
    if values == "text":
        shown = {setting: list(samples) for setting, samples in report.settings.items()}
        assert shown["TimeZone"] == ["UTC"]
        assert (shown["DateStyle"], shown["IntervalStyle"], shown["bytea_output"]) == (["ISO"], ["postgres"], ["hex"])
    if slot.startswith("pg16"):
        assert report.origins == {"elsewhere": 1}
        assert report.prefixes["app"] == {"transactional": 1, "non_transactional": 2, "size": 43}


def test_files_without_messages_have_no_server_or_settings(tmp_path: Path) -> None:
    (tmp_path / "0.bin").write_bytes(b"")
    for paths, files in (([tmp_path], 1), ([], 0)):
        report = inspected(paths)
        assert (report.protocol, report.server, report.settings) == ("unknown", "unknown", {})
        assert (len(report.files), report.is_damaged) == (files, False)


def test_settings_other_than_the_defaults(tmp_path: Path) -> None:
    typed = table("id", ("at", 1184), ("day", 1082), ("span", 1186), ("raw", 17))
    row = insert("1", "2026-01-01 10:00:00+05:30", "01.02.2026", "P1D", "abc\\000")
    report = inspected([land(tmp_path, transaction(1, 10, typed, row))])
    assert {setting: list(values) for setting, values in report.settings.items() if setting != "values"} == {
        "DateStyle": ["ISO", "other"],
        "IntervalStyle": ["iso_8601"],
        "TimeZone": ["UTC+05:30"],
        "bytea_output": ["escape"],
    }


def test_transactions_and_their_sizes(tmp_path: Path) -> None:
    first = [
        *transaction(1, 0x10, table(), *(insert(str(i), "v") for i in range(12))),
        *segment(2, insert("20", "kept"), in_subtransaction(3, insert("21", "dropped")), first=True),
        *stream_abort(2, 3),
        *prepared(4, insert("30", "w")),
        *segment(5, insert("40", "x"), first=True),
        *transaction(6, 0x20),
    ]
    again = [*transaction(6, 0x20), *stream_commit(2, 0x30), *commit_prepared(77, 0x38), *transaction(8, 0x40)[:1]]
    report = inspected([land(tmp_path, first, again)])
    assert {status: n for status, n in report.transactions.items() if n} == {"committed": 3, "resent": 1, "open": 3}
    assert report.sizes == {"0": 1, "1-9": 1, "10-99": 1}
    waiting = [(5, "streamed", None), (4, "prepared", "gid-4"), (8, "ordinary", None)]
    assert [(t.xid, t.kind, t.gid) for t in report.open] == waiting
    assert (report.biggest[0].xid, report.biggest[0].changes, report.biggest[0].commit_lsn) == (1, 12, "0/10")
    [relation] = report.relations
    assert (relation.committed["I"], relation.others) == (13, {"aborted": 1, "open": 2})
    assert (report.first_commit_lsn, report.last_commit_lsn) == ("0/10", "0/38")
    assert report.unknown_prepared == 1


def test_changes_of_aborted_subtransactions_do_not_count(tmp_path: Path) -> None:
    gone = in_subtransaction(3, insert("1", "a"))
    messages = [*segment(2, table(), gone, gone, first=True), *stream_abort(2, 3), *stream_commit(2, 0x30)]
    report = inspected([land(tmp_path, [*messages, *segment(4, insert("2", "b"), first=True), *stream_abort(4)])])
    assert report.sizes == {"0": 1}
    assert {t.xid: (t.fate, t.changes, t.aborted_subtransactions) for t in report.biggest} == {
        2: ("committed", 0, 1),
        4: ("aborted", 1, 0),
    }


def test_duplicate_files_are_counted_once(tmp_path: Path) -> None:
    land(tmp_path, transaction(1, 0x10, table(), insert("1", "a")))
    (tmp_path / "001.copydata.bz2").write_bytes(bz2.compress((tmp_path / "000.copydata").read_bytes()))
    report = inspected([tmp_path])
    assert [file.status for file in report.files] == ["read", "duplicate"]
    assert (report.transactions["committed"], set(report.accounts)) == (1, {"applied", "resent"})
    assert sum(report.accounts.values()) == report.content_bytes
    assert not report.is_damaged


def test_a_damaged_archive_is_inspected_to_its_end(tmp_path: Path) -> None:
    """A missing file, a file that is no archive, a truncated file, and overwritten bytes in the middle."""
    for file in files_of(DATA / "random16" / "v2"):
        content = decompress(file.read_bytes(), str(file))
        number = int(file.name[:3])
        if number == 5:
            content = content[:3000] + bytes(200) + content[3200:]
        if number == 7:
            content = content[:-7]
        if number != 3:
            (tmp_path / f"{number:03}.copydata").write_bytes(content)
    (tmp_path / "004.copydata.gz").write_bytes(b"\x1f\x8b and then nothing of gzip's")
    (tmp_path / "006.note.txt").write_bytes(b"not an archive")

    report = inspected([tmp_path])

    assert report.is_damaged
    assert any("004.copydata.gz: skipped" in line for line in report.remarks), "004.copydata has its content"
    assert any("006.note.txt" in line for line in report.unreadable)
    assert any("002.copydata" in line and "a file is missing" in line for line in report.gaps)
    assert any("005.copydata: " in line and "at offset " in line for line in report.damages)
    assert any("007.copydata" in line for line in report.damages)
    assert report.transactions["committed"] > 100
    assert sum(report.accounts.values()) == report.content_bytes
    assert len(report.files) == 11


@pytest.mark.parametrize(
    "slot",
    ["pg16/v3_twophase", *(pytest.param(slot, marks=pytest.mark.soak) for slot in ("random16/v2", "random16/v4b"))],
)
def test_any_part_of_an_archive_can_be_inspected(slot: str) -> None:
    """A file alone, or without the files before it, is not damaged."""
    files = files_of(DATA / slot)
    for first in range(len(files)):
        report = inspected(files[first : first + 1])
        assert not report.is_damaged, report.gaps
        assert sum(report.accounts.values()) == report.content_bytes
        inspected(files[first:])
    without = [*files[:1], *files[2:]]
    report = inspected(without)
    assert sum(report.accounts.values()) == report.content_bytes


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 100))])
def test_no_damage_stops_an_inspection(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for file in files_of(DATA / "pg16" / chance.choice(["v2_stream", "v3_twophase", "v1"])):
        content = bytearray(decompress(file.read_bytes(), str(file))[: chance.randrange(20_000, 60_000)])
        for _ in range(chance.randrange(4)):
            at, size = chance.randrange(len(content)), chance.randrange(1, 300)
            content[at : at + size] = chance.randbytes(chance.choice([0, size]))
        (tmp_path / file.name.removesuffix(".gz")).write_bytes(content)
    inspection, lines = inspect([tmp_path], wanted=MessageFilter())
    report = report_on(inspection)
    assert sum(report.accounts.values()) == report.content_bytes
    assert len([line for line in lines if "can't be read" not in line]) == sum(report.messages.values())


def test_several_processes_give_the_same_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_runner, "_MIN_BYTES_FOR_PROCESSES", 0)
    for file in files_of(V2):
        shutil.copy(file, tmp_path)
    alone, lines = inspect([tmp_path], wanted=MessageFilter())
    together, others = inspect([tmp_path], processes=2, wanted=MessageFilter())
    assert report_on(alone) == report_on(together)
    assert lines == others
    assert len(lines) == sum(report_on(alone).messages.values())


def test_messages_are_printed_one_per_line(tmp_path: Path) -> None:
    described = table("id", "secret")
    messages = [
        *transaction(7, 0x100, described, insert("1", "hush"), update("1", "hushed"), delete("1", None)),
        *transaction(8, 0x200, Message(None, True, 0x1F0, "outbox", b"hush hush"), truncate(options=1)),
        Message(None, False, 0x208, "clock", b"tick"),
        *transaction(7, 0x100, described, insert("1", "hush")),
        *segment(9, insert("2", "hush"), first=True),
    ]
    land(tmp_path, messages)
    lines = lines_of(tmp_path)
    assert len(lines) == len(messages)
    assert not any("hush" in line or "tick" in line for line in lines), "values are hidden"
    path, offset, lsn, xid, *what = lines[2].split()
    assert (path, lsn, xid) == (str(tmp_path / "000.copydata"), "0/1000002", "7")
    assert (tmp_path / "000.copydata").read_bytes()[int(offset) : int(offset) + 1] == b"d", "the beginning of its frame"
    assert " ".join(what) == "Insert public.t new (id, secret)"
    with_values = lines_of(tmp_path, values=True)
    assert "Insert public.t  new (id='1', secret='hush')" in with_values[2]
    assert "Delete public.t  key (id='1')" in with_values[4]
    assert "hush hush" in with_values[7]
    assert lines[8].endswith("Truncate public.t cascade")
    assert [line.endswith("[resent]") for line in lines] == [False] * 11 + [True] * 4 + [False] * 3
    assert [line.endswith("[open]") for line in lines] == [False] * 15 + [True] * 3


def test_messages_can_be_filtered(tmp_path: Path) -> None:
    other = table(oid=2, name="other")
    time = microseconds_of(parse_time("2026-03-01T02:13:00Z"))
    late: Messages = [Begin(0x200, time, 8), other, insert("1", "a", oid=2), Commit(0x200, 0x208, time)]
    streamed = segment(9, insert("2", "b"), in_subtransaction(10, insert("3", "c")), first=True)
    land(tmp_path, [*transaction(7, 0x100, table(), insert("1", "a")), *late, *streamed, *stream_commit(9, 0x300)])
    assert len(lines_of(tmp_path, tables=("public.o*",))) == 2
    assert all("other" in line for line in lines_of(tmp_path, tables=("public.o*",)))
    assert len(lines_of(tmp_path, xid=8)) == 4
    assert len(lines_of(tmp_path, xid=10)) == 1, "a subtransaction's"
    assert len(lines_of(tmp_path, xid=9)) == 5
    assert len(lines_of(tmp_path, first_lsn=0x1000004, last_lsn=0x1000005)) == 2
    assert len(lines_of(tmp_path, first_time=time)) == 4
    assert len(lines_of(tmp_path, last_time=time - 1)) == 9
    assert len(lines_of(tmp_path, names="^public.other$")) == 2
    assert lines_of(tmp_path, names="^a$") == [], "names only, not values"


def test_messages_without_lsns_are_filtered_by_commit_lsn(tmp_path: Path) -> None:
    file = landed("pg16", "recv.bin")
    content = decompress(file.read_bytes(), str(file))
    assert detect(content) is Framing.RECVLOGICAL
    shutil.copy(file, tmp_path)
    report = inspected([tmp_path])
    biggest = report.biggest[0]
    [number] = {t.commit_lsn for t in report.biggest if t.xid == biggest.xid}
    assert number is not None
    high, _, low = number.partition("/")
    lsn = int(high, 16) << 32 | int(low, 16)
    lines = lines_of(tmp_path, first_lsn=lsn, last_lsn=lsn)
    changes = [line for line in lines if any(f"  {kind} " in line for kind in ("Insert", "Update", "Delete"))]
    assert len(changes) == biggest.changes


def run(*arguments: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    environment = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": os.environ["NUMBA_CACHE_DIR"]}  # compiled kernels
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, env=environment)


def test_the_job_on_a_command_line(tmp_path: Path) -> None:
    done = run("inspect.py", V2, "--json", cwd=JOB.parent)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["exit_code"], len(summary["files"]), summary["protocol"]) == (0, 2, "2 or newer")
    assert "scanning 2 files" in done.stderr

    done = run(JOB, V2, "--messages", "--json", "--quiet", "--table", "public.uidx")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["kind"] for line in lines} >= {"Relation", "Insert"}
    assert all(line["tables"] == ["public.uidx"] and line["values"] == {} for line in lines if "uidx" in line["what"])

    (tmp_path / "0.bin").write_bytes(b"not an archive")
    done = run(JOB, tmp_path, "--quiet")
    assert (done.returncode, done.stderr) == (3, "")
    assert "Can't be read" in done.stdout

    assert run(JOB, tmp_path / "nowhere").returncode == 2


@pytest.mark.parametrize("job", ["apply", "backfill", "plan"])
def test_other_jobs_find_the_standard_librarys_inspect(job: str) -> None:
    """jobs/inspect.py is in the same folder, which Python searches first."""
    done = run(JOB.with_name(f"{job}.py"), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"jobs/{job}.py" in done.stdout


def test_a_plan_with_a_wrong_configuration_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("source: {name: a, landing: b}\ntarget: {rot: c}\n")
    assert run(JOB.with_name("plan.py"), "--config", config).returncode == 2


@pytest.mark.parametrize("wrong", [["--xid", "1"], ["--messages", "--lsn", "x"], ["--messages", "--from-time", "noon"]])
def test_wrong_arguments_are_refused(wrong: list[str]) -> None:
    assert run(JOB, V2, *wrong).returncode == 2


def test_local_files_are_listed_as_spark_lists_them(tmp_path: Path) -> None:
    for name in ("a/1.bin", "a/b/2.bin", "a/_c/3.bin", "a/.4.bin", "d[x]/5.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def names(*paths: str) -> list[str]:
        return sorted(Path(file.path).name for file in list_local(f"{tmp_path}/{path}" for path in paths).files())

    assert names("a") == ["1.bin", "2.bin"]
    assert names("a/*.bin", "d[x]") == ["1.bin", "5.bin"]
    assert names("{a,d*}/*.bin") == ["1.bin", "5.bin"]
    (tmp_path / "gone.bin").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="does not exist"):
        names("gone.bin")
    assert names("a/.4.bin") == [".4.bin"]
    assert [file.path for file in list_local([f"file://{tmp_path}/a/b"]).files()] == [f"{tmp_path}/a/b/2.bin"]
    assert is_local("C/x")
    assert not is_local("s3a://bucket/x")


def test_origins_are_counted(tmp_path: Path) -> None:
    one = transaction(1, 10, table(), insert("1", "a"))
    two = transaction(2, 20, insert("2", "b"))
    report = inspected([land(tmp_path, [one[0], Origin(5, "west"), *one[1:], two[0], Origin(6, "west"), *two[1:]])])
    assert report.origins == {"west": 2}


@pytest.mark.parametrize("slot", ["pg16/v4_parallel", "pg14/v2_stream"])
def test_reports_are_the_same_without_compiled_code(slot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of(DATA / slot)
    fast = inspected(files)
    monkeypatch.setattr(jit, "AVAILABLE", False)
    assert inspected(files) == fast


def test_files_of_another_server_are_reported(tmp_path: Path) -> None:
    ours = [*transaction(1, 0x100, table(), insert("1", "a")), *transaction(2, 0x300, insert("2", "a"))]
    land(tmp_path, ours, transaction(2, 0x300, table(), insert("2", "a")))
    assert inspected([tmp_path]).gaps == (), "sent again"
    land(tmp_path, transaction(7, 0x200, table(), insert("3", "a")), first=2)
    [gap] = inspected([tmp_path]).gaps
    assert "002.copydata: the commit at 0/200 of transaction 7 has a lower LSN" in gap
    land(tmp_path, transaction(9, 0x50, insert("3", "a")), first=2)
    report = inspected([tmp_path])
    assert (report.gaps, len(report.remarks)) == ((), 1), "it may be in earlier files"
    land(tmp_path, transaction(1, 0x400, table(), insert("3", "a")), first=2)
    [gap] = inspected([tmp_path]).gaps
    assert "002.copydata: transaction 1 was committed at 0/400 and at 0/100" in gap

"""Local files with rows' values are for the job's user alone, or also for a configured group, under umask 022."""

from __future__ import annotations

import grp
import os
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest
from pyspark import StorageLevel

from pgoutput_etl.answers.export.request import ExportRequest
from pgoutput_etl.answers.export.run import export
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.run import undo
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.ledger.batches import LedgerBatches
from pgoutput_etl.ledger.private_folders import TABLES
from pgoutput_etl.protocol.messages import Begin, Message
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from tests.support.catalog_messages import CatalogSender
from tests.support.encoder import Row, copydata, encode
from tests.support.jobs import Nights, dying
from tests.support.small_archives import insert, table, transaction, update

pytestmark = pytest.mark.spark

GROUP = "users"
OTHERS = 0o755, 0o644


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    """Of everything below, and of the path itself."""
    return {str(p.relative_to(path)): S_IMODE(p.stat().st_mode) for p in (path, *path.rglob("*"))}


def wrong(path: Path, folder: int, file: int, group: int | None = None) -> dict[str, str]:
    """What has other permissions; nothing is also wrong."""
    found = [path, *path.rglob("*")]
    assert len(found) > 1, f"{path} is empty"
    expected = {p: folder if p.is_dir() else file for p in found}
    group = os.getegid() if group is None else group
    return {
        str(p): f"{S_IMODE(p.stat().st_mode):o} of group {p.stat().st_gid}"
        for p, mode in expected.items()
        if (S_IMODE(p.stat().st_mode), p.stat().st_gid) != (mode, group)
    }


def land_everything(nights: Nights) -> None:
    """A table, another one that takes its name, logical Messages, unreadable bytes, and a waiting transaction."""
    defined = {"oid": 1, "schema": "public", "name": "t", "columns": []}
    messages = [Message(None, True, 0x10, "note", b"value"), CatalogSender().message(1, defined)]
    first = transaction(1, 0x100, table(), insert("1", "value"), *messages)
    nights.land(first, transaction(2, 0x200, update("1", "x")))
    nights.job.run(*nights.job.overrides)
    nights.land(transaction(3, 0x300, table(oid=2), insert("1", "value", oid=2)))
    torn = [encode(m) for m in transaction(4, 0x400, table(oid=5, name="lost"))]
    unreadable = encode(insert("1", "value", oid=5)).replace(b"t", b"z", 1)
    waiting = [encode(Begin(0x500, 0, 8)), encode(insert("9", "value", oid=2))]
    sent = [*torn[:-1], unreadable, torn[-1], *waiting]
    content = copydata(Row(0x3000000 + i, 0, message) for i, message in enumerate(sent))
    (nights.job.landing / "900.copydata").write_bytes(content)
    nights.job.run(*nights.job.overrides)


@pytest.mark.parametrize(
    ("group", "private"),
    [(None, (0o700, 0o600)), pytest.param(GROUP, (0o750, 0o640), marks=pytest.mark.soak)],
)
def test_the_files_of_every_job(nights: Nights, tmp_path: Path, group: str | None, private: tuple[int, int]) -> None:
    if group is not None:
        if grp.getgrnam(group).gr_gid not in {*os.getgroups(), os.getegid()} and os.geteuid() != 0:
            pytest.skip(f"this user may not give files to the group {group}")
        nights.job.overrides.append(f"state.group={group}")
    gid = None if group is None else grp.getgrnam(group).gr_gid
    land_everything(nights)
    state, config = tmp_path / "tables" / "_pgoutput_etl", nights.job.loaded()
    for name in (*TABLES, "displaced"):
        assert wrong(state / name, *private, gid) == {}
    for path in (state / "batches", state / "files", state / "manifests", tmp_path / "tables" / "public"):
        assert wrong(path, *OTHERS) == {}

    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n7,value\n")
    request = SnapshotRequest(("public.t",), 0x600, files=str(rows), slot_lsn=1)
    with dying(LedgerBatches, "begin"):
        snapshot(nights.job.spark, config, request, lambda _: None)
    assert wrong(state / "staged", *private, gid) == {}
    assert any((state / "staged").iterdir())

    undo(nights.job.spark, config, UndoRequest(str(tmp_path / "undo"), xid=3))
    assert wrong(tmp_path / "undo", *private, gid) == {}
    export(nights.job.spark, config, ExportRequest(("*",), str(tmp_path / "export")))
    assert wrong(tmp_path / "export", *private, gid) == {}
    assert (tmp_path / "export" / "load.sql").exists()

    (tmp_path / "shared").mkdir()
    export(nights.job.spark, config, ExportRequest(("*",), str(tmp_path / "shared")))
    found = modes(tmp_path / "shared")
    assert found.pop(".") == 0o755, "an existing folder keeps its permissions"
    assert set(found.values()) == {*private}


def test_rows_that_spark_keeps_on_disk_are_private(nights: Nights) -> None:
    local = Path(nights.job.spark.conf.get("spark.local.dir") or "")
    rows = nights.job.spark.range(10).persist(StorageLevel.DISK_ONLY)
    rows.count()
    assert [*local.rglob("rdd_*")]
    assert S_IMODE(local.stat().st_mode) == 0o700
    rows.unpersist()


def test_an_unknown_group_is_refused_before_anything_is_written(nights: Nights, tmp_path: Path) -> None:
    nights.land(transaction(1, 0x100, table(), insert("1", "value")))
    with pytest.raises(ConfigError, match=r"state\.group: expected a group of this machine"):
        nights.job.run("state.group=nobody-has-this-group")
    assert not (tmp_path / "tables").exists()


def test_a_replaced_file_is_private_unless_the_caller_says_so(tmp_path: Path) -> None:
    script, page = tmp_path / "undo.sql", tmp_path / "status.html"
    script.write_text("of an earlier version")
    replace_file(script, "value")
    replace_file(page, "no value", PUBLIC)
    assert (S_IMODE(script.stat().st_mode), S_IMODE(page.stat().st_mode)) == (0o600, 0o644)
    page.chmod(0o640)
    replace_file(page, "no value", PUBLIC)
    assert S_IMODE(page.stat().st_mode) == 0o640

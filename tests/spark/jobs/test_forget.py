"""Chosen rows are gone from everywhere."""

from __future__ import annotations

import gzip
import json
import os
import struct
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pydantic import TypeAdapter

from pgoutput_etl.answers.moment.read import archive_of, read_at
from pgoutput_etl.changes.row_search import RowSearch
from pgoutput_etl.errors import AnotherRunError, ArchiveError, ConfigError, RunError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ledger.batches import LedgerBatches
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.summary import NO_CHANGES
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.framing import COPY_SIGNATURE
from pgoutput_etl.protocol.messages import Message, ReplicaIdentity
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.erasure import erase as erasing
from pgoutput_etl.work.erasure import landing as files
from pgoutput_etl.work.erasure import purge as purging
from pgoutput_etl.work.erasure.find import find_changes
from pgoutput_etl.work.erasure.landing import FileErasure, plan_files, rewrite
from pgoutput_etl.work.erasure.ledger_rows import LedgerCopies
from pgoutput_etl.work.erasure.report import ForgetSummary, OtherKeys, ProofSummary
from pgoutput_etl.work.erasure.request import ForgetRequest
from pgoutput_etl.work.erasure.run import forget
from pgoutput_etl.work.erasure.snapshot_files import CutFile
from pgoutput_etl.work.erasure.stored_files import SparkFiles
from pgoutput_etl.work.erasure.targets import TargetSearch
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from pgoutput_etl.work.upkeep.table_upkeep import DeltaFolder
from tests.support.jobs import Nights, dying
from tests.support.small_archives import (
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    update,
)

pytestmark = pytest.mark.spark

INT4 = 23


@pytest.mark.soak
def test_the_archive_is_the_same_without_the_rows(nights: Nights, tmp_path: Path) -> None:
    landing = nights.job.landing
    nights.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "Ada"), insert("2", "Bob")))
    nights.night(
        transaction(2, 0x200, update("7", "x", old_key=("1", None)), update("2", "Robert"), insert("3", "Eve")),
        segment(4, delete("7", None), insert("4", "Ada"), insert("5", "Kim"), first=True),  # still open
    )
    archive = archive_of(nights.job.spark, nights.job.loaded())
    search = RowSearch(archive.relations.unmasked(16384)[0], ({"v": "Ada"}, {"id": "1"}, {"id": "7"}))
    planned = plan_files(SparkFiles(archive), find_changes(archive, {16384: search}).offsets)
    assert TypeAdapter(list[FileErasure]).validate_json(json.dumps([asdict(file) for file in planned])) == planned
    with patch.object(files, "_record", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        rewrite(SparkFiles(archive), planned[:1])
    rewrite(SparkFiles(archive), planned)
    rewrite(SparkFiles(archive), planned)
    assert not [path for path in landing.iterdir() if b"Ada" in path.read_bytes()]

    assert nights.job.run().files == 0
    into = str(tmp_path / "copies")
    assert nights.job.backfill(BackfillRequest(tables=("*",), out=into)).exit_code == 0
    rows = nights.job.spark.read.format("delta").load(f"{into}/public/t").select("id", "v").collect()
    assert sorted(map(tuple, rows)) == [(2, "Robert"), (3, "Eve")]
    nights.night(stream_commit(4, 0x300))
    assert nights.job.backfill(BackfillRequest(tables=("*",))).exit_code == 0
    assert sorted(nights.values("t")) == [(2, "Robert"), (3, "Eve"), (5, "Kim")]


@pytest.mark.soak
def test_changes_are_found_in_every_transaction(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "Ada"), insert("2", "Bob")))
    nights.night(
        transaction(2, 0x200, update("7", "x", old_key=("1", None)), update("2", "Robert")),
        [*segment(3, insert("8", "Ada"), first=True), *stream_abort(3)],
        # Still open, with a savepoint that was rolled back
        segment(4, in_subtransaction(40, update("2", "Ada")), delete("7", None), insert("7", "Kim"), first=True),
        [*stream_abort(4, 40), *segment(5, table(("id", INT4), "v", "w"), insert("6", "Lin", "w"), first=True)],
    )
    archive = archive_of(nights.job.spark, nights.job.loaded())
    rows = archive.all_changes({16384}).select("top_xid", "xid", "fate", "scope").where("top_xid > 2").collect()
    assert sorted((row["top_xid"], row["xid"], row["fate"], row["scope"] is None) for row in rows) == [
        (3, 3, "aborted", False),
        *((4, xid, fate, False) for xid, fate in ((4, "open"), (4, "open"), (40, "aborted"))),
        (5, 5, "open", False),
    ]
    conditions = {"v": "Ada"}, {"id": "7"}
    found = find_changes(archive, {16384: RowSearch(archive.relations.unmasked(16384)[0], conditions)})
    assert found.counts == {16384: 6}
    assert {file: sorted(offsets.values()) for file, offsets in found.offsets.items()} == {
        0: [False],
        1: [False, True, True, True, True],
    }
    assert found.other_keys == {16384: {(("id", key),) for key in "128"}}


NAME = "Ada-Lovelace-1815"

BYTES = NAME.encode()


def request_file(folder: Path, text: str) -> str:
    path = folder / "erasure.yaml"
    path.write_text(f"requested_by: dpo@example.org\nreference: DSR-7\n{text}")
    return str(path)


OTHER_KEYS = "erasure.other-keys.yaml"


def places_with(folder: Path, text: str = NAME) -> list[str]:
    """The files that have the text, raw or in a Parquet file's values."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("erasure.yaml", OTHER_KEYS):
            content = path.read_bytes()
            if path.suffix == ".gz":
                content = gzip.decompress(content)
            values = str(pq.read_table(path, partitioning=None).to_pylist()) if path.suffix == ".parquet" else ""
            if text.encode() in content or text in values:
                found.append(str(path.relative_to(folder)))
    return found


def three_nights(nights: Nights) -> None:
    """A person in ended, aborted, prepared, and open transactions, under two keys."""
    nights.night(
        transaction(1, 0x100, table(("id", INT4), "v"), insert("1", NAME), insert("2", "Bob"), insert("3", "Eve")),
        [Message(None, False, 0x150, "audit", b"login of " + BYTES)],
    )
    compressed = transaction(2, 0x200, update("7", NAME + "!", old_key=("1", None)), update("2", "Robert"))
    (nights.job.landing / "001.copydata.gz").write_bytes(gzip.compress(copydata(compressed)))
    nights.landed += 1
    nights.job.run()
    nights.night(
        transaction(3, 0x300, insert("4", "Kim"), update("7", NAME + "?")),
        [*segment(4, insert("8", NAME), first=True), *stream_abort(4)],
        segment(6, update("7", NAME), insert("5", "Lin"), first=True),  # still open
    )


def preview_of(nights: Nights, folder: Path, text: str) -> ForgetSummary:
    summary = forget(nights.job.spark, nights.job.loaded(), ForgetRequest(request_file(folder, text)))
    assert isinstance(summary, ForgetSummary)
    return summary


def all_keys(nights: Nights, folder: Path, text: str) -> str:
    """The request with all keys that previews ask for. text: ends with its tables."""
    path, counts = folder / OTHER_KEYS, list[int]()
    while keys := preview_of(nights, folder, text).other_keys:
        counts.append(dict(keys.counts)["public.t"])
        assert (keys.file, path.stat().st_mode & 0o777) == (str(path), 0o600)
        text += path.read_text().partition("tables:\n")[2]
    assert counts, "the first one asks for some"
    assert not path.exists()
    return text


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "append"])
def test_a_person_is_erased_from_everything(nights: Nights, tmp_path: Path, mode: str) -> None:
    job = nights.job
    job.overrides.append(f"tables=[{{match: '*', mode: {mode}, cdf: true}}]")
    three_nights(nights)
    assert len(places_with(tmp_path)) > 8
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for wrong, error in [
        ("table: public.x, keys: [{id: 1}]", "the archive has no table 'public.x'"),
        ("table: public.t, keys: [{name: 1}]", "public.t has no column 'name', and never had"),
    ]:
        with pytest.raises(ConfigError, match=error):
            forget(job.spark, job.loaded(), ForgetRequest(request_file(tmp_path / "landing", f"tables: [{{{wrong}}}]")))
    (tmp_path / "landing" / "erasure.yaml").unlink()
    text = all_keys(
        nights, tmp_path, f"messages: [{{contains: {NAME}}}]\ntables:\n- {{table: public.t, where: {{v: {NAME}}}}}\n"
    )
    request = ForgetRequest(request_file(tmp_path, text))
    preview = preview_of(nights, tmp_path, text)
    assert preview.newest is not None
    assert preview.newest.endswith("/002.copydata")
    (tmp_path / "erasure.yaml").unlink()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    request_file(tmp_path, text)

    done = forget(job.spark, job.loaded(), replace(request, execute=True))
    assert isinstance(done, ForgetSummary)
    assert replace(done, executed=False, batch=0, changed=NO_CHANGES) == preview
    [erased] = done.changed.tables
    assert (erased.name, erased.deleted) == ("public.t", done.tables[0].rows)
    assert DeltaTable(erased.path).version() == erased.version
    assert (done.tables[0].changes, done.messages, done.copies, len(done.files)) == (5, 1, 2, 3)
    assert places_with(tmp_path) == []
    assert done.exit_code == 0

    proof = forget(job.spark, job.loaded(), replace(request, prove=True))
    assert isinstance(proof, ProofSummary)
    assert (proof.remnants, [table.differences for table in proof.tables]) == ((), [0])
    assert job.run().files == 0
    nights.night(stream_commit(6, 0x400), transaction(9, 0x500, insert("6", "Mia")))
    people = {2: "Robert", 3: "Eve", 4: "Kim", 5: "Lin", 6: "Mia"}
    assert {key: v for key, v, *_ in nights.values("t")} == people
    stored = nights.values("t")
    assert job.backfill(BackfillRequest(tables=("*",))).exit_code == 0
    assert nights.values("t") == stored
    if mode == "mirror":
        moment = read_at(job.spark, job.loaded(), lsn=0x100)["public.t"].select("id", "v").collect()
        assert sorted(map(tuple, moment)) == [(2, "Bob"), (3, "Eve")]


@pytest.mark.soak
def test_an_erasure_that_died_is_finished_by_the_same_request(nights: Nights, tmp_path: Path) -> None:
    job = nights.job
    three_nights(nights)
    request = ForgetRequest(
        request_file(
            tmp_path,
            f"tables: [{{table: public.t, keys: [{{id: 1}}, {{id: 7}}, {{id: 8}}]}}]\n"
            f"messages: [{{prefix: audit, contains: {NAME}}}]",
        ),
        execute=True,
    )
    for owner, effect in [
        (LedgerBatches, "begin"),
        (TargetSearch, "delete"),
        (LedgerCopies, "erase"),
        (purging, "purge"),
        (erasing, "rewrite"),
        (files, "_record"),
        (DeltaLedger, "close_backfill"),
    ]:
        with dying(owner, effect):
            forget(job.spark, job.loaded(), request)
        if effect == "delete":
            changed = "tables=[{match: public.t, columns: {v: drop}}]"
            with pytest.raises(RunError, match="can't go on with this configuration"):
                forget(job.spark, job.loaded(changed), request)
        if effect != "begin":
            with pytest.raises(RunError, match="finish the erasure 'DSR-7' first"):
                job.run()
    assert isinstance(forget(job.spark, job.loaded(), request), ForgetSummary)
    assert places_with(tmp_path) == []
    assert sorted(nights.values("t")) == [(2, "Robert"), (3, "Eve"), (4, "Kim")]
    assert job.run().files == 0


def erase(nights: Nights, folder: Path, text: str, *overrides: str) -> ForgetSummary:
    summary = forget(nights.job.spark, nights.job.loaded(*overrides), ForgetRequest(request_file(folder, text), True))
    assert isinstance(summary, ForgetSummary)
    return summary


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("append", 3),
        *(pytest.param(*own, marks=pytest.mark.soak) for own in (("mirror", 1), ("soft_delete", 1), ("history", 2))),
    ],
)
def test_a_key_means_every_row_that_ever_had_it(nights: Nights, tmp_path: Path, mode: str, rows: int) -> None:
    """Zoe had the key before, and moved to another one. Without that one the erasure leaves her behind, and says so."""
    job = nights.job
    job.overrides.append(f"tables=[{{match: '*', mode: {mode}}}]")
    nights.night(transaction(1, 0x100, table("id", "v"), insert(NAME, "Zoe"), insert("2", "Bob")))
    nights.night(
        transaction(2, 0x200, update("5", "Zoe", old_key=(NAME, None)), insert(NAME, "Ada"), update("2", "Rob"))
    )
    done = erase(nights, tmp_path, KEYS)
    assert [(table.changes, table.rows) for table in done.tables] == [(3, rows)]
    assert (done.exit_code, done.other_keys) == (
        EXIT_QUARANTINE,
        OtherKeys(str(tmp_path / OTHER_KEYS), (("public.t", 1),)),
    )
    assert places_with(tmp_path) == []
    proof = forget(job.spark, job.loaded(), ForgetRequest(request_file(tmp_path, KEYS), prove=True))
    assert isinstance(proof, ProofSummary)
    assert ([remnant.what for remnant in proof.remnants], proof.exit_code) == ([], EXIT_QUARANTINE)
    assert f"rows with the keys in {tmp_path / OTHER_KEYS}" in proof.left[0]
    again = erase(nights, tmp_path, (tmp_path / OTHER_KEYS).read_text())
    assert (again.exit_code, [table.changes for table in again.tables]) == (EXIT_DONE, [0])
    assert not (tmp_path / OTHER_KEYS).exists()
    stored = sorted(map(str, job.rows("public", "t")))
    assert {row["v"] for row in job.rows("public", "t")} == {"Rob"} | (
        {"Bob"} if mode in ("history", "append") else set()
    )
    assert job.run().files == 0
    assert job.backfill(BackfillRequest(tables=("*",))).exit_code == 0
    assert sorted(map(str, job.rows("public", "t"))) == stored


@pytest.mark.soak
def test_names_places_and_keys_that_changed(nights: Nights, tmp_path: Path) -> None:
    """Another table has the place that the table left, with the person in its older versions."""
    nights.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", NAME), insert("2", "Bob")))
    nights.night(
        transaction(2, 0x200, table(("id", INT4), "v", name="u"), update("1", "gone"), insert("3", "Eve")),
        transaction(3, 0x300, table(("id", INT4), "v", oid=9), insert("1", "other", oid=9)),
    )
    done = erase(
        nights, tmp_path, f"tables: [{{table: public.u, keys: [{{id: 1}}]}}, {{table: public.t, where: {{v: {NAME}}}}}]"
    )
    assert {table.name: (table.changes, table.rows) for table in done.tables} == {
        "public.u": (2, 1),
        "public.t": (0, 0),
    }
    assert places_with(tmp_path) == []
    assert (nights.values("u"), nights.values("t")) == ([(2, "Bob"), (3, "Eve")], [(1, "other")])
    before = read_at(nights.job.spark, nights.job.loaded(), lsn=0x100)
    assert [tuple(row) for row in before["public.t"].select("id", "v").collect()] == [(2, "Bob")]
    nights.night(transaction(4, 0x400, update("1", "changed", oid=9), delete("2", None)))
    assert (nights.values("u"), nights.values("t")) == ([(3, "Eve")], [(1, "changed")])


@pytest.mark.soak
def test_a_table_without_a_key_and_a_hashed_column(nights: Nights, tmp_path: Path) -> None:
    nights.job.environ["PGOUTPUT_ETL_SALT"] = "0123456789abcdef"
    hashed = "tables=[{match: public.t, columns: {id: {hash: sha256}}}]"
    bag = table(("id", INT4), "v", identity=ReplicaIdentity.FULL, oid=9, name="bag")
    rows = [insert("1", NAME, oid=9), insert("1", NAME, oid=9), insert("1", "Bob", oid=9)]
    nights.land(transaction(1, 0x100, table("id", "v"), insert(NAME, "Ada"), insert("2", "Bob"), bag, *rows))
    nights.job.run(hashed)
    nights.land(transaction(2, 0x200, update(NAME, "x"), delete_full("1", "Bob", oid=9), insert("2", "Kim", oid=9)))
    nights.job.run(hashed)
    wider = table(("id", INT4), "v", "w", identity=ReplicaIdentity.FULL, oid=9, name="bag")
    moved = update("3", "phone", "x", old=("1", NAME, None), oid=9)
    nights.land(transaction(3, 0x300, wider, moved, update("2", "Kim", "y", old=("2", "Kim", None), oid=9)))
    nights.job.run(hashed)
    text = (
        f"tables: [{{table: public.t, keys: [{{id: {NAME}}}]}}, "
        f"{{table: public.bag, keys: [{{id: 3, v: phone, w: x}}], where: {{v: {NAME}}}}}]"
    )
    done = erase(nights, tmp_path, text, hashed)
    assert {table.name: (table.changes, table.rows) for table in done.tables} == {
        "public.bag": (3, 2),
        "public.t": (2, 1),
    }
    assert places_with(tmp_path) == places_with(tmp_path, "phone") == []
    assert nights.values("bag") == [(2, "Kim", "y")]
    assert [v for _, v in nights.values("t")] == ["Bob"]


@pytest.mark.soak
def test_a_table_from_a_snapshot_and_a_second_erasure(nights: Nights, tmp_path: Path) -> None:
    """Only the snapshot has the person's row, and only the archive its later key. A night meanwhile is refused, and a
    file that has landed meanwhile is reported."""
    job = nights.job
    rows = tmp_path / "rows.csv"
    rows.write_text(f"id,v\n1,{NAME}\n2,Bob\n3,Eve\n")
    other = table(("id", INT4), "v", oid=9, name="other")
    nights.night(transaction(1, 0x100, other, insert("1", "x", oid=9), table(("id", INT4), "v"), insert("3", "Eve")))
    request = SnapshotRequest(("public.t",), 0x110, files=str(rows), slot_lsn=1)
    assert snapshot(job.spark, job.loaded(), request, lambda _: None).exit_code == 0
    nights.night(transaction(2, 0x200, update("7", "Augusta", old_key=("1", None))))
    rows.unlink()
    new = nights.land(transaction(3, 0x300, update("2", "Robert")))

    def meanwhile(*_: object) -> None:
        with pytest.raises(AnotherRunError):
            job.run()

    with patch.object(LedgerCopies, "erase", meanwhile):
        first = erase(nights, tmp_path, "tables: [{table: public.t, keys: [{id: 1}, {id: 7}]}]")
    assert [(table.changes, table.rows) for table in first.tables] == [(1, 1)]
    assert [str(new) in left for left in first.left] == [True]
    assert places_with(tmp_path) == places_with(tmp_path, "Augusta") == []
    job.run()
    assert nights.values("t") == [(2, "Robert"), (3, "Eve")]
    second = erase(nights, tmp_path, "tables: [{table: public.t, keys: [{id: 2}]}]")
    assert [(table.changes, table.rows) for table in second.tables] == [(1, 1)]
    assert job.backfill(BackfillRequest(tables=("*",))).exit_code == 0
    assert (nights.values("t"), nights.values("other")) == ([(3, "Eve")], [(1, "x")])
    assert "public.t" in read_at(job.spark, job.loaded(), lsn=0x150).ahead


@pytest.mark.soak
def test_only_messages(nights: Nights, tmp_path: Path) -> None:
    three_nights(nights)
    done = erase(nights, tmp_path, f"messages: [{{contains: {NAME}}}]")
    assert (done.tables, done.messages, len(done.files)) == ((), 1, 1)
    assert [row["content"] for row in nights.ledger("messages")] == [b""]


def copied(*rows: tuple[int, str]) -> bytes:
    """COPY … WITH (FORMAT binary) of an int4 and a text."""
    fields = [(struct.pack(">i", key), value.encode()) for key, value in rows]
    lines = [struct.pack(">h", 2) + b"".join(struct.pack(">i", len(f)) + f for f in own) for own in fields]
    return COPY_SIGNATURE + struct.pack(">ii", 0, 0) + b"".join(lines) + struct.pack(">h", -1)


@pytest.mark.soak
def test_files_of_snapshots_that_the_request_names(nights: Nights, tmp_path: Path) -> None:
    """The name is only in the files: it was changed since, and so was the key."""
    job, folder = nights.job, tmp_path / "initial"
    folder.mkdir()
    rows = gzip.compress(f'id,v\n2,"B,\nb"\n1,{NAME}\n3,Eve\n'.encode())
    (folder / "rows.csv.gz").write_bytes(rows)
    (tmp_path / "rows.copy").write_bytes(copied((2, "Bob"), (1, NAME), (3, "Eve")))
    nights.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("3", "Eve")))
    request = SnapshotRequest(("public.t",), 0x110, files=str(folder), slot_lsn=1)
    assert snapshot(job.spark, job.loaded(), request, lambda _: None).exit_code == 0
    nights.night(transaction(2, 0x200, update("1", "Augusta"), update("7", "Byron", old_key=("1", None))))
    files = f"{{table: public.t, csv: {folder}}}, {{table: public.t, copy: {tmp_path}/rows.copy}}"
    asked = preview_of(nights, tmp_path, f"{ERASE}\nsnapshots: [{files}]").other_keys
    assert asked is not None, "only the files have the name"
    keys = f"tables: [{{table: public.t, keys: [{{id: 1}}, {{id: 7}}], where: {{v: {NAME}}}}}]"
    text = f"{keys}\nsnapshots: [{files}]"
    with dying(CutFile, "cut"):
        erase(nights, tmp_path, text)
    with dying(DeltaLedger, "close_backfill"):
        erase(nights, tmp_path, text)
    done = erase(nights, tmp_path, text)
    assert (done.tables[0].changes, done.snapshot_rows, len(done.files)) == (None, 2, 3)
    assert [place for name in (NAME, "Augusta", "Byron") for place in places_with(tmp_path, name)] == []
    assert gzip.decompress((folder / "rows.csv.gz").read_bytes()) == b'id,v\n2,"B,\nb"\n3,Eve\n'
    assert (tmp_path / "rows.copy").read_bytes() == copied((2, "Bob"), (3, "Eve"))
    assert nights.values("t") == [(2, "B,\nb"), (3, "Eve")]
    proof = forget(job.spark, job.loaded(), ForgetRequest(request_file(tmp_path, text), prove=True))
    assert isinstance(proof, ProofSummary)
    assert proof.remnants == ()
    (tmp_path / "rows.copy").write_bytes(copied((1, NAME)))
    proof = forget(job.spark, job.loaded(), ForgetRequest(request_file(tmp_path, text), prove=True))
    assert isinstance(proof, ProofSummary)
    assert [remnant.what for remnant in proof.remnants] == ["rows in a snapshot's file", "text 1 of the request"]
    for wrong, error in [
        (f"dump: {tmp_path}", "toc.dat does not exist"),
        (f"copy: {tmp_path}/rows.copy, columns: [id]", "has other columns than public.t in the archive"),
        (f"csv: {tmp_path}/none", "none does not exist"),
    ]:
        with pytest.raises(ConfigError, match=error):
            erase(nights, tmp_path, f"{ERASE}\nsnapshots: [{{table: public.t, {wrong}}}]")
    later = tmp_path / "later.csv"
    later.write_text("id,v\n1,Kim\n3,Mia\n")
    request = SnapshotRequest(("public.t",), 0x310, files=str(later), slot_lsn=1)
    assert snapshot(job.spark, job.loaded(), request, lambda _: None).exit_code == 0
    eve = f"tables: [{{table: public.t, where: {{v: Eve}}}}]\nsnapshots: [{{table: public.t, csv: {folder}"
    with pytest.raises(ConfigError, match=rf"the lsn of .* {folder} is of\. Those of public\.t: 0/110, 0/310"):
        erase(nights, tmp_path, f"{eve}, lsn: 0/111}}]")
    assert erase(nights, tmp_path, f"{eve}, lsn: 0/110}}]").snapshot_rows == 1
    assert nights.values("t") == [(1, "Kim"), (3, "Mia")]


@pytest.mark.soak
def test_a_file_with_another_name_and_a_link_are_no_proof(nights: Nights, tmp_path: Path) -> None:
    path = nights.land(transaction(1, 0x100, table("id", "v"), insert("1", NAME), insert("2", "Bob")))
    other = tmp_path / "backup.copydata"
    other.hardlink_to(path)
    nights.job.run()
    with pytest.raises(ArchiveError, match=rf"{path.name}: expected a file with one name, found one with 2"):
        erase(nights, tmp_path, ERASE)
    assert nights.values("t") == [("1", NAME), ("2", "Bob")], "nothing was erased"
    other.unlink()
    nights.job.backfill(BackfillRequest(("public.t",)))  # a batch with an order, like an erasure
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "9.copydata").write_bytes(path.read_bytes())
    link = nights.job.landing / "9.copydata"
    link.symlink_to(tmp_path / "elsewhere" / "9.copydata")
    preview = forget(nights.job.spark, nights.job.loaded(), ForgetRequest(request_file(tmp_path, ERASE)))
    assert (len(preview.left), preview.exit_code) == (1, EXIT_DONE), "nothing was to be erased yet"
    assert isinstance(preview, ForgetSummary)
    assert (preview.executed, preview.batch) == (False, 0)
    done = erase(nights, tmp_path, ERASE)
    assert nights.values("t") == [("2", "Bob")]
    proof = forget(nights.job.spark, nights.job.loaded(), ForgetRequest(request_file(tmp_path, ERASE), prove=True))
    other_keys = (
        f"rows with the keys in {tmp_path / OTHER_KEYS}, which the request does not name: erase them, too, or delete "
        "the file if others had these keys"
    )
    for summary, others in ((done, []), (proof, [other_keys])):
        left, *more = summary.left
        assert f"{link}: expected a plain file, found a symbolic link" in left
        assert (more, summary.exit_code) == (others, EXIT_QUARANTINE)


@pytest.mark.soak
def test_a_key_that_only_a_stored_row_has_is_asked_for(nights: Nights, tmp_path: Path) -> None:
    """The name is in the history of a snapshot's row, and the archive has only the DELETE of its key. What was found
    is kept until the erasure is done."""
    job, rows = nights.job, tmp_path / "rows.csv"
    job.overrides.append("tables=[{match: '*', mode: history}]")
    rows.write_text(f"id,v\n1,{NAME}\n2,Bob\n")
    nights.night(transaction(1, 0x100, table("id", "v"), insert("2", "Bob")))
    snapshot(
        job.spark, job.loaded(), SnapshotRequest(("public.t",), 0x110, files=str(rows), slot_lsn=1), lambda _: None
    )
    nights.night(transaction(2, 0x200, delete("1", None)))
    rows.unlink()
    text = all_keys(nights, tmp_path, f"tables:\n- {{table: public.t, where: {{v: {NAME}}}}}\n")
    with dying(LedgerCopies, "erase"):
        erase(nights, tmp_path, text)
    [pending] = (tmp_path / "tables" / "_pgoutput_etl" / "erasing").rglob("*.json")
    done = erase(nights, tmp_path, text)
    assert [(table.changes, len(done.files)) for table in done.tables] == [(1, 1)]
    assert not pending.exists()
    assert places_with(tmp_path) == []
    assert [row[0] for row in nights.values("t")] == ["2"]


FIRST = transaction(1, 0x100, table(("id", INT4), "v"), insert("1", NAME), insert("2", "Bob"))

ERASE = f"tables: [{{table: public.t, where: {{v: {NAME}}}}}]"

KEYS = f"tables: [{{table: public.t, keys: [{{id: {NAME}}}]}}]"


@pytest.mark.soak
def test_a_file_that_grew_a_copy_of_its_beginning_and_an_odd_tuple(nights: Nights, tmp_path: Path) -> None:
    """At first the file ended within a message."""
    job, path = nights.job, nights.job.landing / "0.copydata"
    begun, rest = copydata(FIRST), copydata(transaction(2, 0x200, update("1", NAME + "!"), insert("3", "Eve")))
    path.write_bytes(begun)
    job.run()
    (job.landing / "copy.copydata").write_bytes(begun)
    job.run()
    path.write_bytes(begun + rest[:-3])
    job.run()
    path.write_bytes(begun + rest)
    job.run()
    assert len(erase(nights, tmp_path, ERASE).files) == 2
    assert places_with(tmp_path) == []
    assert job.run().files == 0
    os.utime(path, (1, 1))
    preview = forget(job.spark, job.loaded(), ForgetRequest(request_file(tmp_path, ERASE)))
    assert isinstance(preview, ForgetSummary)
    assert preview.left == ()
    nights.night(transaction(3, 0x300, insert("9", NAME, "x")), transaction(4, 0x400, insert("4", "Kim")))
    odd = erase(nights, tmp_path, f"tables: [{{table: public.t, keys: [{{id: 9, v: {NAME}}}]}}]")
    assert [table.changes for table in odd.tables] == [1]
    assert places_with(tmp_path) == []
    assert nights.values("t") == [(2, "Bob"), (3, "Eve")]


@pytest.mark.soak
def test_what_is_appended_meanwhile_stays_and_a_property_is_as_it_was(nights: Nights, tmp_path: Path) -> None:
    job, path = nights.job, nights.land(FIRST)
    job.run()

    def grow(*_: object) -> None:
        path.write_bytes(path.read_bytes() + copydata(transaction(2, 0x200, insert("3", "Eve"))))
        raise MemoryError

    with patch.object(purging, "_delete_log", grow), pytest.raises(MemoryError):
        erase(nights, tmp_path, ERASE)
    with pytest.raises(ArchiveError, match="found one that grows"):
        erase(nights, tmp_path, ERASE)
    with patch.object(files, "_SETTLED", 0):
        erase(nights, tmp_path, ERASE)
    assert places_with(tmp_path) == []
    assert job.run().files == 1
    assert nights.values("t") == [(2, "Bob"), (3, "Eve")]
    detail = delta_table(job.spark, Place(str(job.path("public", "t")))).detail().select("properties").collect()[0]
    assert "delta.deletedFileRetentionDuration" not in detail[0]


@pytest.mark.soak
def test_files_that_a_clock_ahead_has_dated_are_no_proof(nights: Nights, tmp_path: Path) -> None:
    nights.night(FIRST)
    with patch.object(DeltaFolder, "vacuum"), pytest.raises(RunError, match=r"VACUUM left \d files? of older versions"):
        erase(nights, tmp_path, ERASE)
    erase(nights, tmp_path, ERASE)
    assert places_with(tmp_path) == []


@pytest.mark.soak
def test_bytes_in_quarantine(nights: Nights, tmp_path: Path) -> None:
    """A damaged message puts its whole transaction into quarantine, with the person's change."""
    a = table(("id", INT4), "v", oid=101, name="a")
    path = nights.land(
        transaction(1, 0x100, a, insert("1", "x", oid=101), table(("id", INT4), "v"), insert("2", "Bob")),
        transaction(2, 0x200, insert("3", "spoilt", oid=101), insert("1", NAME), insert("4", "Kim")),
    )
    content = path.read_bytes()
    at = content.index(b"t\0\0\0\6spoilt")
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    nights.job.run()
    assert any("quarantine" in place for place in places_with(tmp_path))
    erase(nights, tmp_path, ERASE)
    assert places_with(tmp_path) == []


@pytest.mark.soak
@pytest.mark.parametrize("repaired", [NAME, "Lady-Byron-------"], ids=["the person", "another one"])
def test_copies_from_before_the_archive_was_assembled_again(nights: Nights, tmp_path: Path, repaired: str) -> None:
    """The file was read in two parts then; afterwards its messages have other positions. repaired: who is in it now."""
    job, path = nights.job, nights.job.landing / "0.copydata"
    a = table(("id", INT4), "v", oid=101, name="a")
    begun = copydata(transaction(1, 0x100, a, insert("1", "x", oid=101), table(("id", INT4), "v"), insert("2", "Bob")))
    rest = [
        *[Message(None, False, 0x150, "audit", b"login of " + BYTES), Message(None, False, 0x150, "audit", b"of Bob")],
        *segment(50, insert("9", NAME), insert("5", "Lin"), first=True),
        *transaction(2, 0x200, insert("3", "spoilt", oid=101), insert("1", NAME), insert("4", "Kim")),
    ]
    whole = begun + copydata(rest)
    at = whole.index(b"t\0\0\0\6spoilt")
    for content in (begun, whole[:at] + b"?" + whole[at + 1 :]):
        path.write_bytes(content)
        job.run()
    path.write_bytes(whole.replace(BYTES, repaired.encode()))
    assert job.backfill(BackfillRequest(None)).exit_code == 0
    job.run()
    for copy in ("open_transactions", "messages", "quarantine"):
        assert any(copy in place for place in places_with(tmp_path / "tables")), copy
    text = f"{ERASE}\nmessages: [{{prefix: audit, contains: {NAME}}}]"
    preview = forget(job.spark, job.loaded(), ForgetRequest(request_file(tmp_path, text)))
    assert isinstance(preview, ForgetSummary)
    assert erase(nights, tmp_path, text).copies == preview.copies
    assert places_with(tmp_path) == []
    logins = [] if repaired == NAME else [b"login of " + repaired.encode()]
    assert sorted(row["content"] for row in nights.ledger("messages")) == [b"", *logins, b"of Bob"]
    nights.night(stream_commit(50, 0x300))
    others = [] if repaired == NAME else [(1, repaired), (9, repaired)]
    assert nights.values("t") == sorted([(2, "Bob"), (4, "Kim"), (5, "Lin"), *others])

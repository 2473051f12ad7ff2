"""Delta compared with CSV and with other Delta tables: equal rows, differences and their last writers."""

from __future__ import annotations

from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from pgoutput_etl.answers.verify import delta_side
from pgoutput_etl.answers.verify.delta_side import DeltaSide
from pgoutput_etl.answers.verify.key_ranges import plan_ranges
from pgoutput_etl.answers.verify.report import VerifiedTable, VerifySummary
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.row_text import digests_of, key_size
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.errors import ArchiveError, ConfigError, RunError
from pgoutput_etl.jobs.verify import COMMAND
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.protocol.messages import ReplicaIdentity, Type
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.types.canonical_text import ComparedColumn
from tests.spark.load.test_driver_merge import jobs_of
from tests.support.command_line import refusal
from tests.support.jobs import Job, Nights
from tests.support.small_archives import TOAST, delete, insert, table, transaction, update

MIRROR, SOFT, HISTORY, APPEND, BAG = range(1, 6)
RULES = (
    "tables=[{match: public.soft, mode: soft_delete}, {match: public.history, mode: history}, "
    "{match: public.append, mode: append}]"
)
INT8, DATE = 20, 1082


def verified(job: Job, request: VerifyRequest) -> VerifySummary:
    return verify(job.spark, job.loaded(), request, lambda _: None)


def only(summary: VerifySummary) -> VerifiedTable:
    [table] = summary.tables
    return table


@pytest.mark.spark
@pytest.mark.soak
def test_current_rows_of_every_mode_are_compared_with_another_table(nights: Nights) -> None:
    job = nights.job
    job.overrides.append(RULES)
    oids = {MIRROR: "mirror", SOFT: "soft", HISTORY: "history", APPEND: "append"}
    described = [table(("id", INT8), "v", oid=oid, name=name) for oid, name in oids.items()]
    nights.night(transaction(1, 0x100, *described, *(insert(str(i), "a", oid=oid) for oid in oids for i in range(4))))
    changed = [change for oid in oids for change in (update("1", "b", oid=oid), delete("2", None, oid=oid))]
    nights.night(transaction(7, 0x200, *changed))
    mirror = str(job.path("public", "mirror"))

    for name in ("mirror", "soft", "history"):
        summary = verified(job, VerifyRequest(delta=mirror, tables=(f"public.{name}",)))
        verdict = only(summary)
        assert (summary.exit_code, verdict.rows, verdict.other_rows, verdict.ranges_differing) == (0, 3, 3, 0), name
    with pytest.raises(ConfigError, match=r"nothing to compare: public\.append: mode append stores changes"):
        verified(job, VerifyRequest(delta=mirror, tables=("public.append",)))

    other = DeltaTable.forPath(job.spark, mirror)
    other.update(F.col("id") == 1, {"v": F.lit("SECRET")})
    other.delete(F.col("id") == 3)
    summary = verified(job, VerifyRequest(delta=mirror, tables=("public.history",)))
    verdict = only(summary)
    assert (summary.exit_code, verdict.only_delta, verdict.only_other, verdict.differs) == (3, 1, 0, 1)
    assert verdict.columns == {"v": 1}
    assert {(writer.xid, writer.commit_lsn, writer.rows) for writer in verdict.transactions} == {
        (7, 0x200, 1),
        (1, 0x100, 1),
    }
    assert "SECRET" not in summary.to_json()
    keyed = verified(job, VerifyRequest(delta=mirror, tables=("public.history",), keys=True))
    assert {(row.kind, str(row.key)) for row in only(keyed).differences} == {
        ("differs", "{'id': '1'}"),
        ("only_delta", "{'id': '3'}"),
    }
    assert "SECRET" not in keyed.to_json()
    assert keyed.next_command is not None
    assert f" --config {job.config} " in keyed.next_command
    assert keyed.next_command.endswith(" --tables public.history")
    shown = only(verified(job, VerifyRequest(delta=mirror, tables=("public.history",), values=True)))
    assert [row.other for row in shown.differences if row.kind == "differs"] == [{"id": "1", "v": "SECRET"}]
    assert [row.delta for row in shown.differences if row.kind == "only_delta"] == [{"id": "3", "v": "a"}]
    second = job.spark.read.format("delta").load(mirror).where("id = 0").withColumn("id", F.lit(2).cast("long"))
    second.write.format("delta").mode("append").save(mirror)
    for name, xid in (("soft", 7), ("history", None)):
        verdict = only(verified(job, VerifyRequest(delta=mirror, tables=(f"public.{name}",))))
        [deleted] = [row for row in verdict.differences if row.kind == "only_other"]
        assert (deleted.xid, deleted.commit_lsn) == (xid, 0x200), "the transaction that deleted the row"
    again = only(verified(job, VerifyRequest(delta=mirror, tables=("public.mirror",))))
    assert again.differing == 3, "the ledger's version is compared, not the changed one"


@pytest.mark.spark
def test_small_tables_are_read_without_a_spark_job(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    job, spark, hstore = nights.job, nights.job.spark, Type(None, 16_400, "public", "hstore")
    described = [table(("id", INT8), ("day", DATE)), table("v", oid=BAG, name="bag", key=())]
    described.append(table("id", ("tags", hstore.oid), oid=HISTORY, name="maps"))
    rows = [insert("1", "2026-01-01"), insert("2", "infinity"), insert("3", None), insert("a", oid=BAG)]
    nights.night(transaction(1, 0x100, hstore, *described, *rows, insert("1", '"a"=>"b"', oid=HISTORY)))
    nights.night(transaction(2, 0x200, update("5", TOAST), insert("a", oid=BAG)))
    config = job.loaded()
    ledger = DeltaLedger.of(spark, config)
    last = applied(ledger.batches.last(), ledger.source)
    types = DeltaArchive.of(spark, config, ledger, last).user_types

    def side_of(name: str) -> tuple[DeltaSide, list[ComparedColumn]]:
        [state] = [state for state in last.tables.values() if state.table == name]
        columns = table_columns(state.relation, state.retired, types)
        return DeltaSide.stored(spark, state, types), [ComparedColumn(c.name, c.type) for c in columns]

    whole = {name: side_of(name) for name in ("t", "bag")}
    before, read = jobs_of(spark), {}
    for name, (side, columns) in whole.items():
        key = (0,) if name == "t" else ()
        size = side.key_size(columns, key)
        ranges = plan_ranges(columns, key, *size, rows_in_range=1)
        read[name] = size, ranges, side.digests(columns, ranges)
    assert jobs_of(spark) == before
    for name, (size, ranges, digests) in read.items():
        side, columns = whole[name]
        assert digests == digests_of(side.texts(columns), len(columns), ranges)
        assert sum(digest.rows for digest in digests.values()) == {"t": 4, "bag": 2}[name]
        if name == "t":
            assert size == (4, (1, 5)) == key_size(side.current, columns, (0,))
    assert side_of("maps")[0].small is None
    monkeypatch.setattr(delta_side, "_SMALL_BYTES", 100)
    assert side_of("bag")[0].small is None
    monkeypatch.undo()
    DeltaTable.forPath(spark, str(job.path("public", "bag"))).delete("v = 'a'")
    side, columns = side_of("bag")
    assert side.small is None, "the newest version is not the ledger's"
    [digest] = side.digests(columns, plan_ranges(columns, (), 0, (None, None))).values()
    assert digest.rows == 2


def csv(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


@pytest.mark.soak
@pytest.mark.spark
def test_csv_with_bags_and_with_values_never_sent(nights: Nights, tmp_path: Path) -> None:
    job, bag = nights.job, table("a", "b", oid=BAG, name="bag", identity=ReplicaIdentity.FULL)
    rows = [insert("x", None, oid=BAG), insert("x", None, oid=BAG), insert("y", "", oid=BAG)]
    nights.night(transaction(1, 0x100, table(), insert("1", "a"), bag, *rows))
    nights.night(transaction(2, 0x200, update("2", TOAST), update("1", "b")), transaction(3, 0x300, insert("3", "c")))

    same = only(verified(job, VerifyRequest(("public.bag",), csv=csv(tmp_path, "bag.csv", 'a,b\nx,\ny,""\nx,\n'))))
    assert (same.differing, same.rows) == (0, 3)
    other = verified(job, VerifyRequest(("public.bag",), csv=csv(tmp_path, "bag2.csv", "a,b\nx,\ny,\nz,1\nz,1\n")))
    verdict = only(other)
    assert (other.exit_code, verdict.only_delta, verdict.only_other, verdict.differs) == (3, 2, 3, 0)

    now = only(verified(job, VerifyRequest(("public.t",), csv=csv(tmp_path, "t.csv", "v,id\nb,1\nbig,2\nc,3\n"))))
    assert (now.differing, now.unknown) == (0, 1), "a value never sent may be anything"
    fewer = only(verified(job, VerifyRequest(("public.t",), csv=csv(tmp_path, "t2.csv", "id,g\n1,7\n2,8\n3,9\n"))))
    assert (fewer.differing, set(fewer.not_compared)) == (0, {"v", "g"})


@pytest.mark.spark
@pytest.mark.soak
def test_csv_as_of_an_lsn_and_refused_files(nights: Nights, tmp_path: Path) -> None:
    job = nights.job
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    nights.night(transaction(2, 0x200, update("2", TOAST), update("1", "b")), transaction(3, 0x300, insert("3", "c")))
    first = csv(tmp_path, "t3.csv", "id,v\n1,a\n")
    before = verified(job, VerifyRequest(csv=first, tables=("public.t",), at=0x1FF))
    assert (before.exit_code, before.last_commit_lsn) == (0, 0x100)
    assert only(verified(job, VerifyRequest(csv=first, tables=("public.t",)))).only_delta == 2
    with pytest.raises(RunError, match=r"no batch ended there.*the commit at 0/200"):
        verified(job, VerifyRequest(csv=first, tables=("public.t",), at=0x250))

    with pytest.raises(ConfigError, match="key column 'id' can't be compared"):
        verified(job, VerifyRequest(("public.t",), csv=csv(tmp_path, "t4.csv", "v\na\n")))
    with pytest.raises(ArchiveError, match=r"t5\.csv, record 1: expected 2 fields") as error:
        verified(job, VerifyRequest(("public.t",), csv=csv(tmp_path, "t5.csv", "id,v\nSECRET\n")))
    assert "SECRET" not in str(error.value)
    with pytest.raises(ConfigError, match=r"--csv: .*none\.csv does not exist"):
        verified(job, VerifyRequest(csv=str(tmp_path / "none.csv"), tables=("public.t",)))

    now = verified(job, VerifyRequest(("public.t",), csv=csv(tmp_path, "t.csv", "v,id\nb,1\nbig,2\nc,3\n")))
    assert not now.remarks
    DeltaTable.forPath(job.spark, str(job.path("public", "t"))).delete("id = '3'")
    by_hand = verified(job, VerifyRequest(csv=str(tmp_path / "t.csv"), tables=("public.t",)))
    [remark] = by_hand.remarks
    assert remark.startswith("public.t was compared at Delta version ")
    assert only(by_hand).differing == 0, "the version that the last run wrote is compared"
    with pytest.raises(ConfigError, match=r"the ledger has no table public\.none"):
        verified(job, VerifyRequest(csv=first, tables=("public.none",)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PGO-1200: ConfigError: expected one of --server, --jdbc, --csv and --delta"),
        (["--csv", "a"], "PGO-1200: ConfigError: --csv and --delta hold one table"),
        (["--csv", "a", "--table", "a.b", "--at-lsn", "1"], "not an LSN: '1'"),
        (["--csv", "a", "--tables", "a.b", "--at", "1"], "not a moment: '1'"),
        (["--jdbc", "jdbc:postgresql://h/d?password=SECRET"], "PGPASSWORD"),
    ],
)
def test_wrong_arguments_are_refused_before_spark_starts(
    tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = refusal(COMMAND, arguments, tmp_path, capsys)
    assert message in printed
    assert "SECRET" not in printed

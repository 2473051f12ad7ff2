"""A finished batch is shown to readers as a whole: by a manifest, and by views in a catalog."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.ledger.publish import DeltaPublisher
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.shared_file import ObjectFile
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from pgoutput_etl.work.upkeep import retention
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.spark.targets.test_catalog import in_catalog
from tests.support.jobs import Nights, summary_text
from tests.support.small_archives import Change, insert, table, transaction, truncate, update

pytestmark = pytest.mark.spark


def manifest(nights: Nights, name: str = "test") -> dict[str, Any]:
    path = Path(nights.job.loaded().state.root) / "manifests" / f"{name}.json"
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def shown(nights: Nights) -> dict[str, tuple[int, str, str]]:
    return {t["table"]: (t["version"], t["lsn"], t["status"]) for t in manifest(nights)["tables"]}


def test_the_manifest_has_each_tables_version_after_the_last_batch(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not written without news; a run publishes what a run that died has not; a skipped table has its own LSN,
    and is left out if it is new."""
    nights.job.overrides.append("target.readers=all")
    nights.night(transaction(1, 0x100, table(), insert("1", "a"), table(oid=2, name="u"), insert("1", "x", oid=2)))
    first = manifest(nights)
    assert (first["source"], first["batch"], first["lsn"], first["commit_time"]) == (
        "test", 1, "0/100", "2000-01-01T00:00:00+00:00"
    )  # fmt: skip
    assert shown(nights) == {"t": (0, "0/100", "applied"), "u": (0, "0/100", "applied")}
    nights.job.run()
    assert manifest(nights) == first
    (Path(nights.job.loaded().state.root) / "manifests" / "test.json").unlink()
    nights.job.run()
    assert manifest(nights)["batch"] == 1

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeltaPublisher, "publish", die)
        with pytest.raises(KeyboardInterrupt):
            nights.night(transaction(2, 0x200, insert("2", "b")))
    assert manifest(nights)["batch"] == 1
    assert nights.job.run().files == 0
    assert (manifest(nights)["batch"], manifest(nights)["lsn"]) == (2, "0/200")
    version, *rest = shown(nights)["t"]
    assert (version > 0, rest) == (True, ["0/200", "applied"])
    assert shown(nights)["u"] == (0, "0/200", "applied")
    path = next(t["path"] for t in manifest(nights)["tables"] if t["table"] == "t")
    assert DeltaTable(path, version=version).to_pyarrow_table().num_rows == 2
    assert DeltaTable(path, version=0).to_pyarrow_table().num_rows == 1

    nights.job.overrides.append("tables=[{match: public.u, skip: true}, {match: public.v, skip: true}]")
    changes: list[Change] = [insert("3", "c"), insert("2", "x", oid=2), table(oid=3, name="v"), insert("1", "x", oid=3)]
    nights.night(transaction(3, 0x300, *changes))
    assert shown(nights)["u"] == (0, "0/200", "skipped")
    assert shown(nights).keys() == {"t", "u"}


@pytest.mark.soak
def test_every_job_that_closes_a_batch_publishes_it(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "LEAST_SMALL_FILES", 2)
    for n in (1, 2, 3):
        nights.night(transaction(n, 0x100 * n, *([table()] if n == 1 else []), insert(str(n), "a" * n)))
    nights.job.backfill(BackfillRequest(("*",)))
    assert manifest(nights)["batch"] == 4
    maintained = maintain(nights.job.spark, nights.job.loaded(), MaintainRequest(execute=True), lambda _: None)
    assert manifest(nights)["batch"] == maintained.batch or maintained.batch == 0


def test_a_stored_file_is_replaced_at_once(spark: SparkSession, tmp_path: Path) -> None:
    file = ObjectFile(ObjectFolder(spark, f"file:{tmp_path}/a folder"), "a.json")
    assert file.read() is None
    file.replace("1")
    file.replace("é")
    assert file.read() == "é"
    assert [path.name for path in (tmp_path / "a folder").iterdir() if not path.name.endswith(".crc")] == ["a.json"]


VIEWS = "target.views"


@pytest.fixture
def viewed(spark: SparkSession, tmp_path: Path, landing: Path) -> Nights:
    nights = in_catalog(spark, tmp_path, landing)
    prefix = nights.job.overrides[0].partition("spark_catalog.")[2].strip("}")
    nights.job.overrides.append(f"{VIEWS}=v{prefix}")
    return nights


def view(nights: Nights, name: str) -> str:
    return f"spark_catalog.{nights.job.loaded().target.views}_public.{name}"


def rows(nights: Nights, place: str) -> list[tuple[Any, ...]]:
    frame = nights.job.spark.sql(f"SELECT * FROM {place}")
    frame = frame.select(*(name for name in frame.columns if not name.startswith("_pg_")))
    return sorted(tuple(row) for row in frame.collect())


def test_views_show_the_last_finished_batch_while_the_next_one_is_written(
    viewed: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed.night(transaction(1, 0x100, table(), insert("1", "a"), table(oid=2, name="u"), insert("1", "x", oid=2)))
    assert rows(viewed, view(viewed, "t")) == [("1", "a")]
    seen = []
    close = Ledger.close

    def watched(self: Ledger, *given: Any) -> None:
        target = next(t["path"] for t in manifest(viewed)["tables"] if t["table"] == "t")
        seen.append((rows(viewed, target), rows(viewed, view(viewed, "t"))))
        close(self, *given)

    monkeypatch.setattr(Ledger, "close", watched)
    viewed.land(transaction(2, 0x200, update("1", "b"), insert("2", "b")))
    assert "the views in spark_catalog.v" in plan(viewed.job.spark, viewed.job.loaded()).remarks[0]
    viewed.job.run()
    assert seen == [([("1", "b"), ("2", "b")], [("1", "a")])]
    assert rows(viewed, view(viewed, "t")) == [("1", "b"), ("2", "b")]
    assert rows(viewed, view(viewed, "u")) == [("1", "x")]


@pytest.mark.soak
def test_views_follow_truncates_new_columns_renames_and_the_configuration(viewed: Nights) -> None:
    viewed.night(transaction(1, 0x100, table(), insert("1", "a")))
    viewed.night(transaction(2, 0x200, truncate(), table("id", "v", "w"), insert("2", "b", "c")))
    assert rows(viewed, view(viewed, "t")) == [("2", "b", "c")]
    viewed.night(transaction(3, 0x300, table("id", "v", "w", name="renamed"), insert("3", "b", "c")))
    assert rows(viewed, view(viewed, "renamed")) == [("2", "b", "c"), ("3", "b", "c")]
    catalog = viewed.job.spark.catalog
    assert not catalog.tableExists(view(viewed, "t"))

    kept = view(viewed, "renamed")
    viewed.job.overrides.pop()
    assert viewed.job.run().files == 0
    assert not catalog.tableExists(kept), "without target.views no view grows old"


@pytest.mark.soak
def test_an_object_in_the_way_of_a_view_stops_no_table(viewed: Nights) -> None:
    spark = viewed.job.spark
    viewed.night(transaction(1, 0x100, table(), insert("1", "a")))
    place = view(viewed, "u")
    spark.sql(f"CREATE TABLE {place} (id INT) USING delta")
    inserted = transaction(2, 0x200, table(oid=2, name="u"), insert("1", "x", oid=2), insert("2", "b"))
    for summary in (viewed.night(inserted), viewed.job.run(), viewed.night(transaction(3, 0x300, insert("3", "c")))):
        assert summary.exit_code == EXIT_QUARANTINE
        assert summary.unpublished is not None
        assert re.search("`u` exists, and is not a view of this source: rename it", summary.unpublished)
        assert "Views and manifest still show an earlier batch" in summary_text(summary)
    assert manifest(viewed)["batch"] == 1
    assert len(rows(viewed, next(t["path"] for t in manifest(viewed)["tables"] if t["table"] == "t"))) == 3
    spark.sql(f"DROP TABLE {place}")
    done = viewed.job.run()
    assert (done.files, done.exit_code, rows(viewed, place)) == (0, EXIT_DONE, [("1", "x")])
    assert manifest(viewed)["batch"] == 3


@pytest.mark.soak
def test_views_of_others_are_neither_replaced_nor_dropped(viewed: Nights) -> None:
    spark = viewed.job.spark
    viewed.night(transaction(1, 0x100, table(), insert("1", "a")))
    spark.sql(f"CREATE OR REPLACE VIEW {view(viewed, 't')} AS SELECT 'by hand' AS id")
    viewed.night(transaction(2, 0x200, table(name="renamed"), insert("2", "b")))
    assert rows(viewed, view(viewed, "t")) == [("by hand",)], "the table has another name now"
    spark.sql(f"CREATE VIEW {view(viewed, 'v')} AS SELECT 1 AS id")
    other = viewed.night(transaction(3, 0x300, table(oid=3, name="v"), insert("1", "x", oid=3)))
    assert other.unpublished is not None
    assert rows(viewed, view(viewed, "v")) == [(1,)]


def test_a_manifest_that_is_none_is_written_anew(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table(), insert("1", "a")))
    path = Path(nights.job.loaded().state.root) / "manifests" / "test.json"
    for text in ("{", "[]", '{"tables": []}'):
        path.write_text(text)
        assert nights.job.run().exit_code == EXIT_DONE
        assert manifest(nights)["batch"] == 1

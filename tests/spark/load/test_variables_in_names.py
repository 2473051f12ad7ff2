"""A name such as ${env:HOME} stays a name wherever it becomes part of SQL text, also in a session of the caller's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.spark.platform import SUBSTITUTE
from pgoutput_etl.spark.session import session_for_few_rows, session_settings
from pgoutput_etl.work.plan.run import plan
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.support.jobs import Job, Nights
from tests.support.small_archives import insert, table, transaction, update

pytestmark = pytest.mark.spark
INT4, INT8, TEXT = 23, 20, 25
ENV, SYSTEM, SPARK, HIVE = "${env:HOME}", "${system:java.version}", "${spark.app.id}", "${hiveconf:spark.app.id}"
# In a configuration's values, $${…} stands for a literal ${…}.
RULES = (
    "tables=[{match: '*', mode: %s, cluster_by: ['%s'], comment: 'about %s', "
    "properties: {'team.%s': '%s'}, columns: {'%s': {renamed_from: '%s'}}}]"
)


@pytest.fixture
def substituting(spark: SparkSession) -> SparkSession:
    """A session that replaces variables, as Spark's sessions do by default."""
    own = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if name.startswith("spark.sql.") and spark.conf.isModifiable(name):
            own.conf.set(name, value)
    own.conf.set(SUBSTITUTE, "true")
    assert own.sql(f"SELECT 1 AS `{SYSTEM}`").columns != [SYSTEM]
    return own


def is_as_it_stands(spark: SparkSession) -> bool:
    return bool(spark.sql(f"SELECT 1 AS `{SYSTEM}`").columns == [SYSTEM])


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_variables_in_names_are_not_replaced(
    substituting: SparkSession, tmp_path: Path, landing: Path, mode: str
) -> None:
    spark = substituting
    written = [text.replace("$", "$$") for text in (ENV, SYSTEM, SPARK, HIVE)]
    rules = RULES % (mode, *written[:2], SPARK, written[3], HIVE, written[1])
    nights = Nights(Job(spark, tmp_path, landing, [rules]))
    columns: tuple[tuple[str, int], ...] = (("id", INT4), (ENV, TEXT), (SYSTEM, INT4))
    relation = replace(table(*columns, name=SPARK), namespace=ENV)
    nights.night(transaction(1, 0x100, relation, insert("1", "a", "2"), insert("2", "b", "3")))

    # A column is added, renamed, and retyped; then one is dropped.
    columns = (("id", INT4), (ENV, TEXT), (HIVE, INT8), (SPARK, TEXT))
    relation = replace(table(*columns, name=SPARK), namespace=ENV)
    nights.night(transaction(2, 0x200, relation, update("1", "c", "3000000000", "d")))
    relation = replace(table(("id", INT4), (ENV, TEXT), (SPARK, TEXT), name=SPARK), namespace=ENV)
    nights.land(transaction(3, 0x300, relation, insert("3", "e", "f")))
    plan(spark, nights.job.loaded(), lambda _: None)
    assert nights.job.run().exit_code == 0
    maintain(spark, nights.job.loaded(), MaintainRequest(), lambda _: None)

    place = str(nights.job.path(ENV, SPARK))
    detail = delta_table(spark, Place(place)).detail().collect()[0]
    assert nights.job.columns(ENV, SPARK)[:3] == ["id", ENV, SPARK]
    assert detail["clusteringColumns"] == [quoted(ENV)]
    assert detail["description"] == f"about {SYSTEM}"
    assert detail["properties"][f"team.{SPARK}"] == HIVE
    current = [row for row in nights.job.rows(ENV, SPARK) if row.get("_pg_valid_to_lsn") is None]
    assert sorted((row["id"], row[ENV], row[SPARK]) for row in current) == [
        (1, "c", "d"),
        (2, "b", None),
        (3, "e", "f"),
    ]
    log = "".join(path.read_text() for path in Path(place).rglob("_delta_log/*.json"))
    assert str(Path.home()) not in log.replace(str(tmp_path), "")


def test_copied_sessions_read_sql_as_it_stands(spark: SparkSession) -> None:
    assert is_as_it_stands(spark)
    assert is_as_it_stands(session_for_few_rows(spark))
    with session_settings(spark, {"spark.sql.shuffle.partitions": "7"}) as writing:
        assert is_as_it_stands(writing)

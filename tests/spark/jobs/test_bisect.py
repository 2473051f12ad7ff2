"""The first commit after which a query returns rows equals the one that a search through all commits finds."""

from __future__ import annotations

import logging
from itertools import pairwise
from random import Random

import pytest
from pyspark.errors import AnalysisException

import pgoutput_etl as pg
from pgoutput_etl.answers.moment.question import Question
from pgoutput_etl.errors import ConfigError, RunError
from tests.support.jobs import Nights
from tests.support.small_archives import delete, insert, table, transaction, update

pytestmark = pytest.mark.spark

INT4 = 23


def history(nights: Nights, seed: int, last: int) -> list[int]:
    """Lands and applies one account's balances in several nights; returns the balance after each commit."""
    random = Random(seed)
    balances = [100]
    files = [transaction(1, 0x100, table(("id", INT4), ("balance", INT4)), insert("1", "100"), insert("2", "5"))]
    for number in range(2, last + 1):
        balances.append(balances[-1] - random.randint(1, 30))
        files.append(transaction(number, 0x100 * number, update("1", str(balances[-1]))))
    cuts = sorted({0, last, *random.sample(range(1, last), 3)})
    for start, end in pairwise(cuts):
        nights.night(*files[start:end])
    return balances


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 8))])
def test_the_first_commit_is_found_with_few_probes(nights: Nights, seed: int) -> None:
    balances, lines = history(nights, seed, 16), list[str]()
    wanted = next(n for n, balance in enumerate(balances, 1) if balance < 0)
    before = {path for path in nights.job.folder.rglob("*") if path.is_file()}
    query = "select t.id, balance from public.t where public.t.balance < 0"
    found = pg.bisect(nights.job.spark, nights.job.loaded(), query, progress=lines.append)
    assert (found.lsn, found.xid, found.origin) == (0x100 * wanted, wanted, None)
    assert found.time is not None
    assert str(found).startswith(f"0/{wanted:X}00, transaction {wanted}, at 2")
    assert [tuple(row) for row in found.rows.collect()] == [(1, balances[wanted - 1])]
    assert found.tables["public.t"].count() == 2
    assert found.probes <= 8
    assert sum(line.startswith("probe ") for line in lines) == found.probes
    assert sum(line.startswith("reading ") for line in lines) <= 2, "files are read once"
    assert {path for path in nights.job.folder.rglob("*") if path.is_file()} == before, "nothing was written"


@pytest.mark.soak
def test_tables_and_columns_that_come_later(nights: Nights) -> None:
    other = table(("id", INT4), oid=16385, name="u")
    nights.night(transaction(1, 0x100, table("id"), insert("1")))
    nights.night(
        transaction(2, 0x200, other, insert("1", oid=16385)),
        transaction(3, 0x300, table("id", "v"), insert("2", "x")),
        transaction(4, 0x400, delete("1", None)),
        transaction(5, 0x500, insert("5", "y")),
    )

    def first(query: str, first: int | None = None, last: int | None = None) -> int:
        return pg.bisect(nights.job.spark, nights.job.loaded(), query, first=first, last=last).lsn

    assert first("select 1 from public.t, public.u where v is not null") == 0x300
    assert first("select 1 from public.u where not exists (select 1 from public.t where id = u.id)") == 0x400
    assert first("with x as (select count(*) as n from public.t) select 1 from x where n = 2", first=0x480) == 0x500
    with pytest.raises(RunError, match=r"the query returns no rows as of 0/500"):
        first("select 1 from public.t where id = '9'")
    with pytest.raises(RunError, match="returns rows already before 0/300"):
        first("select 1 from public.t", first=0x300)
    with pytest.raises(ConfigError, match="there is no commit from 0/600 to 0/500"):
        first("select 1 from public.t", first=0x600)
    with pytest.raises(ConfigError, match=r"query: public\.u does not exist as of 0/100"):
        first("select 1 from public.u", last=0x100)
    with pytest.raises(ConfigError, match=r"the archive has no table 'public\.w'"):
        first("select 1 from public.w")
    with pytest.raises(ConfigError, match=r"query: .*UNRESOLVED_COLUMN"):
        first("select w from public.t")


def test_errors_of_spark_stay_as_they_are(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table("id"), insert("1")))
    logging.Logger.manager.loggerDict.pop("SQLQueryContextLogger", None)  # as in a session without errors so far
    assert pg.bisect(nights.job.spark, nights.job.loaded(), "select 1 from public.t").lsn == 0x100
    with pytest.raises(AnalysisException):
        nights.job.spark.sql("select nothing from range(1)")


@pytest.mark.parametrize("query", ["select 1 from t", "drop table public.t", "select ((", "select 1; select 2"])
def test_what_is_no_query_of_tables_is_refused(query: str) -> None:
    with pytest.raises(ConfigError, match="query: "):
        Question.of(query)


def test_names_become_views() -> None:
    question = Question.of("select `a b`.x from public.`a b` join s.t as o on o.id = `a b`.id join cte where s.t.y = 1")
    assert question.views.keys() == {"public.a b", "s.t"}
    assert "public" not in question.sql
    assert "cte" in question.sql

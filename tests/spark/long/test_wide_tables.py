"""As many columns as PostgreSQL allows in a table, as many values as it may leave unsent, and as many tables as a small
source has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from tests.spark.test_installed_command import INT4, land, run
from tests.support.jobs import Nights
from tests.support.small_archives import TOAST, Change, Messages, insert, table, transaction, update

pytestmark = [pytest.mark.spark, pytest.mark.soak]

CONFIG = """
source: {{name: shop, landing: '{folder}/landing', snapshot: accept}}
target: {{root: '{folder}/warehouse'}}
tables: [{{match: '*', mode: history}}]
"""

COLUMNS, UNSENT, TABLES = 1600, 400, 150


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_row_whose_key_changes_keeps_400_unsent_values_of_1600_columns(nights: Nights, mode: str) -> None:
    names = ["id", *(f"c{n}" for n in range(1, COLUMNS))]
    stored = [f"s{n}" for n in range(1, COLUMNS)]
    sent = [TOAST if n < UNSENT else f"n{n}" for n in range(COLUMNS - 1)]
    nights.job.overrides.append(f"tables=[{{match: '*', mode: {mode}}}]")
    rows = [insert("1", *stored), insert("2", *stored)]
    assert nights.night(transaction(1, 0x100, table(*names), *rows)).exit_code == 0

    moved = update("3", *sent, old_key=("1", *[None] * len(stored)))
    later = update("3", *[TOAST] * UNSENT, *(f"m{n}" for n in range(UNSENT, COLUMNS - 1)))
    unmoved = update("2", *sent)
    assert nights.night(transaction(2, 0x200, moved, later, unmoved)).exit_code == 0

    found: DataFrame = nights.job.spark.read.format("delta").load(str(nights.job.path("public", "t")))
    if mode == "history":
        assert {"1", "2"} <= {row[0] for row in found.where("_pg_valid_to_lsn is not null").select("id").collect()}
        found = found.where("_pg_valid_to_lsn is null")
    values = {row[0]: list(row[:COLUMNS]) for row in found.collect()}
    last = [f"m{n}" for n in range(UNSENT, COLUMNS - 1)]
    assert values == {
        "2": ["2", *stored[:UNSENT], *sent[UNSENT:]],
        "3": ["3", *stored[:UNSENT], *last],
    }


def test_a_first_run_of_150_tables_fits_into_the_code_cache(tmp_path: Path) -> None:
    def changes(oid: int) -> Iterator[Change]:
        width = oid % 7
        yield table(("id", INT4), *(f"c{n}" for n in range(width)), oid=oid, name=f"t{oid}")
        yield from (insert(str(i), *["x" * 20] * width, oid=oid) for i in range(100))
        yield from (update(str(i), *["y" * 20] * width, oid=oid) for i in range(0, 100, 3))

    def night(number: int) -> Messages:
        oids = range(number + 1, TABLES + 1, 5)
        return transaction(number + 1, 100 * (number + 1), *(change for oid in oids for change in changes(oid)))

    land(tmp_path, *(night(number) for number in range(5)))
    (tmp_path / "shop.yaml").write_text(CONFIG.format(folder=tmp_path), encoding="utf-8")
    done = run(tmp_path, JDK_JAVA_OPTIONS="")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CodeCache" not in done.stdout + done.stderr
    assert len(list((tmp_path / "warehouse" / "public").iterdir())) == TABLES

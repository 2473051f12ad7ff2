"""Spark finds the changes that the reference finds by following each row."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.ingest.executors import _WITH_STATUS
from pgoutput_etl.jobs.forget.find import find_changes
from tests.support.archived_tables import landed
from tests.support.erased_changes import Landed
from tests.support.model.history import random_history, random_options

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@dataclass(frozen=True)
class Archive:
    """What find_changes reads of a DeltaArchive."""

    rows: DataFrame

    def all_changes(self, _: object) -> DataFrame:
        return self.rows


# In these, a key of the chosen row was also that of another row, which moved there or was there before.
REUSED = (51, 261, 278, 299, 495, 518, 593, 700, 744, 776, 846, 888, 911, 1032)


def test_random_histories(spark: SparkSession) -> None:
    seen: Counter[str] = Counter()
    for seed in (*range(20), *REUSED):
        chance = random.Random(seed)
        history = random_history(chance, replace(random_options(chance), evicts_prepared=False))
        archive = Landed([landed(file, chance) for night in history.nights(chance) for file in night])
        keyed = sorted(oid for oid, table in archive.replayed().tables().items() if table.shape.key)
        if not keyed:
            continue
        oid = chance.choice(keyed)
        try:
            identities = sorted({use.identity for change in archive.found(oid) for use in change.keys}, key=repr)
        except (ArchiveError, TableError):
            continue
        search = archive.search(oid)
        if not identities or not search.has_key:
            continue
        columns = search.versions.relations
        condition = {columns[n].columns[place].name: text for (n, place), text in chance.choice(identities)}
        expected = archive.chosen(oid, condition)
        table = pa.Table.from_pylist(archive.changes(oid), _WITH_STATUS)
        found = find_changes(Archive(spark.createDataFrame(table)), {oid: archive.search(oid, condition)})  # type: ignore[arg-type]
        places = {(row["file"], row["ordinal"]) for row in found.positions.to_pylist()}
        assert places == {(change.file, change.ordinal) for change in expected.changes}, f"seed {seed}"
        assert {period.identity for period in found.periods_of(oid)} == expected.keys, f"seed {seed}"
        seen["histories"] += 1
        seen["changes"] += len(places)
        kept = [c for c in archive.found(oid) if (c.file, c.ordinal) not in places]
        seen["reused"] += len(expected.keys & {use.identity for change in kept for use in change.keys})
    assert seen["histories"] > 20
    assert seen["changes"] > 40
    assert seen["reused"] >= len(REUSED)

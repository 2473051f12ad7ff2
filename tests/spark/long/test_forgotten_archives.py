"""Random rows of real archives are erased, by runs that die: the tables then have all other rows, and the archive gives
the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import yaml
from pyspark.sql import SparkSession

from pgoutput_etl.answers.moment.read import archive_of
from pgoutput_etl.changes.row_search import RowKey, RowSearch
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.erasure import erase as erasing
from pgoutput_etl.work.erasure import landing as files
from pgoutput_etl.work.erasure import purge as purging
from pgoutput_etl.work.erasure.ledger_rows import LedgerCopies
from pgoutput_etl.work.erasure.report import ForgetSummary, ProofSummary
from pgoutput_etl.work.erasure.request import ForgetRequest
from pgoutput_etl.work.erasure.run import forget
from pgoutput_etl.work.erasure.stored_files import SparkFiles
from pgoutput_etl.work.erasure.targets import TargetSearch
from tests.support.captures import CAPTURES, files_of
from tests.support.erased_changes import keys_of
from tests.support.jobs import Job, dying

pytestmark = [pytest.mark.spark, pytest.mark.soak]

EFFECTS = [
    (TargetSearch, "delete"),
    (LedgerCopies, "erase"),
    (purging, "purge"),
    (erasing, "rewrite"),
    (SparkFiles, "write"),
    (files, "_record"),
    (DeltaLedger, "close_backfill"),
]

Rows = dict[str, list[str]]


def rows_of(job: Job) -> Rows:
    """The rows of all tables, as sorted texts. A rebuild may order columns otherwise."""
    tables = archive_of(job.spark, job.loaded()).last.tables.values()
    return {
        state.full_name: sorted(
            str(sorted(row.items())) for row in read_table(job.spark, state.path).toArrow().to_pylist()
        )
        for state in tables
        if state.version >= 0
    }


def searches(archive: DeltaArchive) -> Iterator[RowSearch]:
    for oid in archive.last.tables:
        yield RowSearch(archive.relations.unmasked(oid)[0], (), user_types=archive.user_types)


def keys_in(archive: DeltaArchive, search: RowSearch) -> list[RowKey]:
    changes = archive.all_changes([search.versions.oid]).where("tag != 'T'")
    return keys_of(search, changes.toArrow().to_pylist())


def request_of(job: Job, table: str, keys: list[RowKey], folder: Path) -> ForgetRequest:
    """Names these keys, and all other keys that previews list."""
    path, tables = folder / "erasure.yaml", [{"table": table, "keys": list(map(dict, keys))}]
    request = ForgetRequest(str(path), execute=True)
    while True:
        content = {"requested_by": "x", "reference": folder.name, "tables": tables}
        path.write_text(json.dumps(content).replace("${", "$${"))
        preview = forget(job.spark, job.loaded(), replace(request, execute=False))
        assert isinstance(preview, ForgetSummary)
        if preview.other_keys is None:
            return request
        tables += yaml.safe_load(Path(preview.other_keys.file).read_text().replace("$${", "${"))["tables"]


@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history", "append"])
@pytest.mark.parametrize("slot", ["random16/v1", "random16/v4b", "pg16/v4_twophase_parallel_binary", "pg16/v2_stream"])
def test_random_rows_are_erased(slot: str, mode: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    chance = Random(f"{slot} {mode}")
    job = Job(spark, tmp_path, landing, [f"tables=[{{match: '*', mode: {mode}}}]"])
    for path in files_of(CAPTURES / slot):
        (landing / path.name).write_bytes(path.read_bytes())
        job.run()
    archive = archive_of(spark, job.loaded())
    found = [(search, keys) for search in searches(archive) if (keys := keys_in(archive, search))]
    search, keys = chance.choice(found)
    before, name = rows_of(job), archive.name(search.versions.oid)
    request = request_of(job, name, chance.sample(keys, min(3, len(keys))), tmp_path)
    preview = forget(spark, job.loaded(), replace(request, execute=False))
    assert isinstance(preview, ForgetSummary)
    for owner, effect in chance.sample(EFFECTS, 2):
        try:
            with dying(owner, effect):
                forget(spark, job.loaded(), request)
        except pytest.fail.Exception:  # it was done before the effect
            break
        with pytest.raises(RunError, match="finish the erasure"):
            job.run()
    assert isinstance(forget(spark, job.loaded(), request), ForgetSummary)
    after = rows_of(job)
    assert {n: rows for n, rows in after.items() if n != name} == {n: rows for n, rows in before.items() if n != name}
    assert set(after[name]) <= set(before[name])
    proof = forget(spark, job.loaded(), replace(request, execute=False, prove=True))
    assert isinstance(proof, ProofSummary)
    assert [table.differences for table in proof.tables] == [0]
    assert not [remnant for remnant in proof.remnants if not remnant.what.startswith("text ")]
    assert job.run().files == 0
    are_complete = all(state.is_complete for state in archive.last.tables.values())
    assert job.backfill(BackfillRequest(tables=("*",))).exit_code == (0 if are_complete else 3)
    rebuilt = rows_of(job)
    same = [table for table in after if table not in preview.unseen]
    assert {table: rebuilt[table] for table in same} == {table: after[table] for table in same}

"""An archive with names that attack SQL, paths, and terminals, through the nightly job."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.work.files.report import print_summary
from tests.support.jobs import Job
from tests.support.small_archives import Messages, copydata, insert, table, transaction, update

SQL = "`; DROP TABLE t; -- ' \" ${spark.app.id} $(id) \\ */"
TERMINAL = "\x1b]8;;http://evil\x07\x1b[2J\r\n\u202e"
COLUMNS = ("id", SQL, TERMINAL, "a.b", "*", "_metadata", "c0", "${env:HOME}")
# Schema and table: like the ledger, like Delta's log, outside the target, and names that differ only in case or form.
NAMES = [
    ("_pgoutput_etl", "files"),
    ("..", "../../escaped"),
    (SQL[:20], TERMINAL),
    ("public", "Case"),
    ("public", "case"),
    ("public", "x" * 300),
    ("public", ""),
]


def archive() -> Messages:
    messages: Messages = []
    for number, (schema, name) in enumerate(NAMES):
        oid = 20000 + number
        relation = replace(table(*COLUMNS, oid=oid, name=name), namespace=schema)
        row = [f"{number}", *(f"{column}'s" for column in COLUMNS[1:])]
        messages += transaction(2 * number + 1, 100 * number + 100, relation, insert(*row, oid=oid))
        changed = [f"{number}", "changed", *row[2:]]
        messages += transaction(2 * number + 2, 100 * number + 150, update(*changed, oid=oid))
    return messages


@pytest.mark.spark
def test_hostile_names_are_only_names(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    (landing / "0.bin").write_bytes(copydata(archive()))
    job = Job(spark, tmp_path, landing)

    summary = job.run()

    for number, (schema, name) in enumerate(NAMES[:5]):
        (row,) = job.rows(schema, name)
        expected = [f"{number}", "changed", *(f"{column}'s" for column in COLUMNS[2:])]
        assert [row[column] for column in COLUMNS] == expected
    held = {t.table: t.held for t in summary.tables if t.held is not None}
    assert held == {
        "x" * 300: "its table name would make a folder name of 300 bytes; the limit is 255",
        "": "its table name is empty",
    }
    target = tmp_path / "tables"
    written = {path.parent.relative_to(target) for path in target.rglob("_delta_log")}
    ledger = {path for path in written if path.parts[0] == "_pgoutput_etl"}
    assert written - ledger == {Path(path_segment(schema), path_segment(name)) for schema, name in NAMES[:5]}
    assert {path.name for path in tmp_path.iterdir()} == {"job.yaml", "landing", "tables"}
    console = Console(file=StringIO(), width=200)
    print_summary(summary, console)
    assert isinstance(console.file, StringIO)
    assert all(line.isprintable() for line in console.file.getvalue().splitlines())
    assert job.run().files == 0

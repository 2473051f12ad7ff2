"""Undo of small archives: which transactions, which tables, and which rows."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from pgoutput_etl.answers.moment.read import archive_of
from pgoutput_etl.answers.undo.report import print_undo
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.run import undo, undone_tables
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.protocol.messages import Origin, ReplicaIdentity
from tests.support.jobs import Job, Nights
from tests.support.small_archives import delete, insert, table, transaction, truncate, update

pytestmark = pytest.mark.spark

INT4, JSONB = 23, 3802


def steps(nights: Nights, request: UndoRequest) -> list[tuple[str, list[str], int]]:
    undone = undone_tables(archive_of(nights.job.spark, nights.job.loaded()), request)
    return [(t.name, [step.operation.value for step in t.steps], len(t.conflicts)) for t in undone.tables]


def test_transactions_by_xid_range_and_origin(nights: Nights, tmp_path: Path) -> None:
    first, *rest = transaction(4, 0x400, insert("4", "d"))
    nights.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a"), insert("2", "b")))
    nights.night(
        transaction(2, 0x200, update("1", "x"), delete("2", None)),
        transaction(3, 0x300, update("1", "y"), insert("3", "c")),
        [first, Origin(0x1, "app_v2"), *rest],
    )
    into = str(tmp_path / "undo" / "it's.sql")
    assert steps(nights, UndoRequest(into, xid=2)) == [("t", ["delete"], 1)]
    assert steps(nights, UndoRequest(into, from_lsn=0x200, to_lsn=0x300)) == [
        ("t", ["update", "delete", "update", "insert"], 0)
    ]
    assert steps(nights, UndoRequest(into, origin="app_v2")) == [("t", ["insert"], 0)]
    for request, error in (
        (UndoRequest(into, xid=9), "xid 9: the ledger has no committed transaction"),
        (UndoRequest(into, origin="app_v3"), "no transaction from 'app_v3'"),
        (UndoRequest(into, from_lsn=0x250, to_lsn=0x280), "no transaction from 0/250 to 0/280 changed these tables"),
        (UndoRequest(into, xid=2, tables=("public.u",)), r"has no table 'public\.u'"),
    ):
        with pytest.raises(ConfigError, match=error):
            steps(nights, request)

    config, server = nights.job.loaded(), "postgresql://db/shop?sslmode=require&application_name=undo"
    config = replace(config, source=replace(config.source, server=server))
    summary = undo(nights.job.spark, config, UndoRequest(into, xid=2))
    assert summary.exit_code == 3
    assert json.loads(summary.to_json())["tables"] == [
        {
            "name": "public.t",
            "inserts": 0,
            "updates": 0,
            "deletes": 1,
            "conflicts": 1,
            "lost": 0,
            "xids": [3],
            "kept": [],
        }
    ]
    text = StringIO()
    print_undo(summary, Console(file=text, width=40))
    folder = tmp_path / "undo"
    command = f"psql -X -q -d '{server}' -f '{folder}/it'\"'\"'s.sql'"
    assert f"Read {folder}/it's.html, then run: {command}\n" in text.getvalue()
    script = (folder / "it's.sql").read_text()
    assert """-- Not undone: "public"."t" ('1'): changed again by 3\n""" in script
    assert script.endswith("COMMIT;\n")
    page = (folder / "it's.html").read_text()
    assert "Some rows stay as they are" in page
    assert "http" not in page.replace("http-equiv", "")
    with pytest.raises(ConfigError, match=r"has a script it's\.sql already"):
        undo(nights.job.spark, nights.job.loaded(), UndoRequest(into, xid=2))


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["mirror", "soft_delete", "history"])
def test_former_values_come_from_tables_in_every_mode(
    spark: SparkSession, tmp_path: Path, landing: Path, mode: str
) -> None:
    nights = Nights(Job(spark, tmp_path, landing, [f"tables=[{{match: '*', mode: {mode}}}]"]))
    nights.night(
        transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a"), insert("2", "b"), insert("3", "c")),
        transaction(2, 0x200, update("1", "a2"), delete("3", None)),
    )
    nights.night(
        transaction(3, 0x300, update("1", "x"), delete("2", None), insert("3", "new")),
        transaction(4, 0x400, table(("id", INT4), "v", "added"), update("9", "z", None, old_key=("3", None, None))),
    )
    [undone] = undone_tables(archive_of(spark, nights.job.loaded()), UndoRequest("undo", xid=3)).tables
    assert [column.name for column in undone.columns] == ["id", "v", "added"]
    assert [(step.before and step.before.texts, step.after and step.after.texts) for step in undone.steps] == [
        (("1", "a2", None), ("1", "x", None)),
        (("2", "b", None), None),
    ]
    assert [(conflict.keys, conflict.xids) for conflict in undone.conflicts] == [((("3",), ("9",)), (4,))]


@pytest.mark.soak
def test_tables_are_found_under_all_their_names(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    rules = (
        "tables=[{match: public.moved, rename: crm.customer}, {match: public.held, on_schema_change: {add: hold}}, "
        "{match: '*'}]"
    )
    nights = Nights(Job(spark, tmp_path, landing, [rules]))
    names = ["moved", "held", "renamed"]
    moved, held, renamed = (table(("id", INT4), "v", oid=100 + i, name=name) for i, name in enumerate(names))
    first = [message for r in (moved, held, renamed) for message in (r, insert("1", "a", oid=r.oid))]
    nights.night(transaction(1, 0x100, *first))
    wider = table(("id", INT4), "v", "w", oid=101, name="held")
    nights.night(transaction(2, 0x200, wider, update("1", "b", "c", oid=101)))  # so the table is held
    nights.night(
        transaction(3, 0x300, update("1", "x", oid=100), update("1", "x", "x", oid=101), update("1", "x", oid=102)),
        transaction(4, 0x400, table(("id", INT4), "v", oid=102, name="named"), insert("2", "b", oid=102)),
    )
    for patterns in (("*",), ("public.*",)):
        request = UndoRequest("undo", xid=3, tables=patterns)
        undone = undone_tables(archive_of(spark, nights.job.loaded()), request)
        assert [(t.full_name, [step.before and step.before.texts for step in t.steps]) for t in undone.tables] == [
            ("public.moved", [("1", "a")]),
            ("public.named", [("1", "a")]),
        ]
        assert [(left.name, left.reason) for left in undone.left_out] == [
            ("public.held", "its rows before these transactions are not known")
        ]


@pytest.mark.soak
def test_tables_that_are_left_out_say_why(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    rules = (
        "tables=[{match: public.appended, mode: append}, {match: public.skipped, skip: true}, "
        "{match: public.masked, columns: {v: redact}}]"
    )
    nights = Nights(Job(spark, tmp_path, landing, [rules, "types={jsonb: variant}"]))
    names = ["appended", "skipped", "masked", "truncated", "renamed", "bag", "fine", "replaced", "readded", "variant"]
    relations = {name: table(("id", INT4), "v", oid=100 + i, name=name) for i, name in enumerate(names)}
    relations["bag"] = table(("id", INT4), "v", oid=105, name="bag", identity=ReplicaIdentity.FULL)
    relations["variant"] = table(("id", INT4), ("v", JSONB), oid=109, name="variant")
    first = [message for r in relations.values() for message in (r, insert("1", "1", oid=r.oid))]
    nights.night(transaction(1, 0x100, *first))
    bad = [insert("2", "2", oid=relation.oid) for relation in relations.values()]
    nights.night(
        transaction(2, 0x200, *bad),
        transaction(3, 0x300, truncate(103)),
        transaction(4, 0x400, table(("id", INT4), "w", oid=104, name="renamed"), insert("3", "c", oid=104)),
        transaction(5, 0x500, replace(relations["bag"], columns=table(("id", INT4), "v", "w").columns)),
        transaction(6, 0x600, insert("4", "d", "e", oid=105)),
        transaction(7, 0x700, table(("id", INT4), "v", oid=999, name="replaced"), insert("5", "e", oid=999)),
        transaction(8, 0x800, table(("id", INT4), oid=108, name="readded"), insert("6", oid=108)),
        transaction(9, 0x900, table(("id", INT4), "v", oid=108, name="readded"), insert("7", "g", oid=108)),
    )
    undone = undone_tables(archive_of(spark, nights.job.loaded()), UndoRequest("undo", xid=2))
    assert [table.name for table in undone.tables] == ["fine"]
    assert {left.name.removeprefix("public."): left.reason for left in undone.left_out} == {
        "appended": "mode append has changes, not rows",
        "skipped": "the configuration skips it",
        "masked": "masked: v",
        "truncated": "it has been truncated since: jobs/export.py writes its rows as of before",
        "renamed": "columns have been dropped, renamed, or given another type since",
        "bag": "it has no key, and columns have been added since",
        "replaced": "another table has its name now",
        "readded": "columns have been dropped, renamed, or given another type since",
        "variant": "variant, which doesn't keep PostgreSQL's text: v",
    }
    refusing = nights.job.loaded("source.origins=none")
    with pytest.raises(ConfigError, match=r"source\.origins refuses transactions"):
        undone_tables(archive_of(spark, refusing), UndoRequest("undo", xid=2))

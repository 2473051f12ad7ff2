"""Tables whose columns and keys change: after each night they equal the replay, and the ledger and the summary report
the changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.load import evolve
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.load.target_columns import current_rows
from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity, Type
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.files.report import RunSummary
from tests.support.jobs import Job
from tests.support.small_archives import (
    TOAST,
    Change,
    Messages,
    copydata,
    delete,
    delete_full,
    in_subtransaction,
    insert,
    replayed,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

pytestmark = pytest.mark.spark

INT2, INT4, INT8, FLOAT4, FLOAT8, TEXT, DATE, TIMESTAMP, NUMERIC = 21, 23, 20, 700, 701, 25, 1082, 1114, 1700
FULL = ReplicaIdentity.FULL
Columns = tuple[str | tuple[str, int], ...]


class Nights:
    """A job, and a replay of the same files."""

    def __init__(self, job: Job, *overrides: str) -> None:
        self.job, self.overrides = job, overrides
        self.files: list[Messages] = []
        self.lsn = 100

    def commit(self, *changes: Change) -> Messages:
        self.lsn += 100
        return transaction(self.lsn, self.lsn, *changes)

    def land(self, messages: Messages) -> None:
        self.files.append(messages)
        (self.job.landing / f"{len(self.files):03}").write_bytes(copydata(messages, 0x1000000 * len(self.files)))

    def run(self, messages: Messages) -> RunSummary:
        self.land(messages)
        return self.job.run(*self.overrides)

    def assert_as_replayed(self, declared: dict[str, dict[str, str | None]] | None = None) -> None:
        replay = replayed(*self.files)
        tables = replay.tables(declared=declared)
        for (schema, name), oid in replay.name_holders().items():
            if oid in tables:
                want = [_comparable(row) for row in tables[oid].rows]
                have = [_comparable(row) for row in self.job.rows(schema, name)]
                assert sorted(have) == sorted(want), f"{schema}.{name}"

    def changes(self, name: str) -> list[tuple[str, str | None, str | None]]:
        ledger = self.job.folder / "tables" / "_pgoutput_etl" / "schema_changes"
        rows = self.job.spark.read.format("delta").load(str(ledger)).where(f"`table` = '{name}'")
        in_order = sorted(
            rows.collect(),
            key=lambda row: (row["batch"], row["file"] or 0, row["ordinal"] or 0, row["kind"], row["column"]),
        )
        return [(row["kind"], row["column"], row["detail"]) for row in in_order]


def _comparable(row: dict[str, Any]) -> str:
    odd = row["_pg_unrepresentable"]
    return repr(sorted({**row, "_pg_unrepresentable": dict(odd) if odd else None}.items()))


@pytest.fixture
def nights(spark: SparkSession, tmp_path: Path, landing: Path) -> Nights:
    return Nights(Job(spark, tmp_path, landing))


def typed(name: str, oid: int, *columns: str | tuple[str, int], **more: Any) -> Relation:
    return table(("id", INT4), *columns, name=name, oid=oid, **more)


def numeric(relation: Relation, name: str, precision: int, scale: int) -> Relation:
    modifier = (precision << 16 | scale) + 4
    columns = tuple(replace(c, type_modifier=modifier) if c.name == name else c for c in relation.columns)
    return replace(relation, columns=columns)


def test_columns_are_added_dropped_and_changed_within_and_between_nights(nights: Nights) -> None:
    """Table `a` changes within each file, table `b` from one to the next."""
    nights.overrides = ("tables=[{match: '*', on_schema_change: {ambiguous: ignore}}]",)
    a1 = typed("a", 1, ("n", INT4), ("f", FLOAT4), "gone", ("d", DATE))
    a2 = typed("a", 1, ("n", INT8), ("f", FLOAT8), ("d", DATE))
    a3 = numeric(
        typed("a", 1, ("number", NUMERIC), ("f", FLOAT8), ("d", TIMESTAMP), "new, `odd`.name"), "number", 20, 4
    )
    a4 = typed("a", 1, ("number", TEXT), ("f", INT4), ("d", TEXT), "new, `odd`.name")
    b1, b2 = typed("b", 2, "v", "w"), typed("b", 2, "renamed", "w", "x")
    b3 = typed("b", 2, "renamed", "x", "w")  # w was dropped and added again: it has x's type, but another place
    first = [
        *nights.commit(b1, insert("1", "v1", "w1", oid=2), insert("2", "v2", "w2", oid=2)),
        *nights.commit(
            a1,
            insert("1", "7", "0.1", "x", "2024-02-29", oid=1),
            insert("2", "-2147483648", "-0", None, "infinity", oid=1),
            insert("3", "8", "1.5", None, None, oid=1),
            a2,
            insert("4", "41", "0.1", "0044-03-15 BC", oid=1),
            update("1", "8", TOAST, "2024-03-01", oid=1),
        ),
    ]
    nights.run(first)
    nights.assert_as_replayed()
    second = [
        *nights.commit(
            a3, insert("5", "1.5000", "NaN", "2024-01-01 10:00:00", "new", oid=1), delete("3", *[None] * 4, oid=1)
        ),
        *nights.commit(b2, update("2", "v2!", "w2!", "x2", oid=2), insert("3", "v3", "w3", "x3", oid=2)),
        *nights.commit(a4, update("5", "1.5", "2", "some text", TOAST, oid=1)),
    ]
    summary = nights.run(second)
    nights.assert_as_replayed()
    assert summary.exit_code == 0
    assert nights.job.columns("public", "a") == ["id", "number", "f", "d", "new, `odd`.name"]
    rows = {row["id"]: row for row in nights.job.rows("public", "a")}
    assert rows[1]["number"] == "8.0000"
    assert rows[2]["d"] == "infinity"
    assert rows[4]["d"] == "0044-03-15 00:00:00 BC"
    assert (rows[2]["f"], rows[4]["f"]) == (0, None)  # 0.1 is unknown: nothing is rounded
    assert dict(rows[4]["_pg_unrepresentable"]) == {"f": "0.1"}
    assert dict(rows[1]["_pg_unrepresentable"]) == {"f": "0.10000000149011612"}
    assert nights.changes("a") == [
        ("column dropped", "gone", None),
        ("column retyped", "f", None),
        ("column retyped", "n", None),
        ("column added", "new, `odd`.name", None),
        ("column renamed", "number", "was n"),
        ("column retyped", "d", None),
        ("column retyped", "number", None),
        ("column retyped", "d", None),
        ("column retyped", "f", None),
        ("column retyped", "number", None),
    ]
    notes = {t.table: t.notes for t in summary.tables}
    assert notes["b"] == ("column renamed: renamed (was v)", "column added: x")
    third = nights.commit(b3, insert("4", "v4", "x4", "w4", oid=2))
    ignoring = "{match: '*', on_schema_change: {ambiguous: ignore}}"
    nights.overrides = (f"tables=[{{match: public.b, columns: {{w: added}}}}, {ignoring}]",)
    assert nights.run(third).exit_code == 0
    nights.assert_as_replayed({"public.b": {"w": None}})
    assert sorted(nights.changes("b")[2:]) == [("column added", "w", None), ("column dropped", "w", None)]


@pytest.mark.soak
def test_keys_change(nights: Nights) -> None:
    """The same rows under another key, without a key, and with the first key again; renamed key columns."""
    pk, renamed = typed("k", 1, ("n", INT4), "v"), table(("key", INT4), ("n", INT4), "v", key=["key"], name="k", oid=1)
    by_n = table(("key", INT4), ("n", INT4), "v", key=["n"], name="k", oid=1)
    bag = table(("key", INT4), ("n", INT4), "v", identity=FULL, name="k", oid=1)
    full = typed("f", 2, "v", identity=FULL)
    full_renamed = table(("ident", INT4), "v", identity=FULL, name="f", oid=2)
    nights.overrides = ("tables=[{match: public.f, key: [id]}]",)
    nights.run(
        [
            *nights.commit(
                pk, *(insert(str(i), str(-i), "v", oid=1) for i in range(1, 7)), delete("6", None, None, oid=1)
            ),
            *nights.commit(renamed, update("9", "-1", TOAST, old_key=("1", None, None), oid=1)),
            *nights.commit(
                by_n, update("20", "-2", "by n", oid=1), update("3", "-30", "moved", old_key=(None, "-3", None), oid=1)
            ),
            *nights.commit(full, insert("1", "a", oid=2), insert("2", "b", oid=2)),
        ]
    )
    rows = {(row["key"], row["n"], row["v"]) for row in nights.job.rows("public", "k")}
    assert rows == {(9, -1, "v"), (20, -2, "by n"), (3, -30, "moved"), (4, -4, "v"), (5, -5, "v")}
    summary = nights.run(
        [
            *nights.commit(bag, insert("4", "-4", "v", oid=1), delete_full("4", "-4", "v", oid=1)),
            *nights.commit(by_n, update("5", "-5", "again", oid=1)),
            *nights.commit(full_renamed, update("2", "c", old=("2", "b"), oid=2)),
        ]
    )
    assert summary.exit_code == 0
    assert {(row["key"], row["n"]) for row in nights.job.rows("public", "k")} == {r[:2] for r in rows}
    assert {(row["ident"], row["v"]) for row in nights.job.rows("public", "f")} == {(1, "a"), (2, "c")}
    assert ("key changed", None, "key to n") in nights.changes("k")


@pytest.mark.soak
def test_a_column_that_may_have_been_renamed_is_retired(nights: Nights) -> None:
    nights.overrides = ("tables=[{match: '*', on_schema_change: {ambiguous: ignore}}]",)
    old, new = typed("t", 1, "a"), typed("t", 1, "b")
    nights.run(nights.commit(old, *(insert(str(i), f"a{i}", oid=1) for i in range(1, 5))))
    summary = nights.run(
        [
            *nights.commit(
                new, update("1", "b1", oid=1), insert("5", "b5", oid=1), update("9", "b9", old_key=("2", None), oid=1)
            ),
            *nights.commit(delete("3", None, oid=1), insert("3", "b3", oid=1)),
        ]
    )
    nights.assert_as_replayed()
    rows = {(row["id"], row["a"], row["b"]) for row in nights.job.rows("public", "t")}
    assert rows == {(1, "a1", "b1"), (9, "a2", "b9"), (3, None, "b3"), (4, "a4", None), (5, None, "b5")}
    assert summary.tables[0].notes == ("column dropped or renamed: a", "column added: b")
    third = nights.run(nights.commit(typed("t", 1, "b", "a"), insert("6", "b6", "another a", oid=1)))
    nights.assert_as_replayed()
    assert third.exit_code == 0
    assert {row["a"] for row in nights.job.rows("public", "t")} == {None, "another a"}


@pytest.mark.soak
def test_the_configuration_declares_a_rename(nights: Nights) -> None:
    nights.overrides = ("tables=[{match: 'public.*', columns: {b: {renamed_from: a}}}]",)
    nights.run(nights.commit(typed("t", 1, "a"), insert("1", "a1", oid=1)))
    summary = nights.run(nights.commit(typed("t", 1, "b"), insert("2", "b2", oid=1)))
    assert summary.tables[0].notes == ("column renamed: b (was a)",)
    assert {(row["id"], row["b"]) for row in nights.job.rows("public", "t")} == {(1, "a1"), (2, "b2")}
    assert nights.job.columns("public", "t") == ["id", "b"]


def test_an_ambiguous_change_holds_only_its_table(nights: Nights) -> None:
    nights.run(
        [
            *nights.commit(typed("t", 1, "a", "b"), insert("1", "a", "b", oid=1)),
            *nights.commit(typed("u", 2, "v"), insert("1", "v", oid=2)),
        ]
    )
    new_key = table(("id", INT4), "v", ("k", INT4), key=["k"], name="u", oid=2)
    summary = nights.run(
        [
            *nights.commit(typed("t", 1, "b", "a"), insert("2", "b", "a", oid=1)),
            *nights.commit(new_key, insert("2", "v", "2", oid=2)),
            *nights.commit(typed("w", 3, "v"), insert("1", "v", oid=3)),
        ]
    )
    held = {t.table: t.held for t in summary.tables}
    assert summary.exit_code == 3
    assert held["w"] is None
    assert str(held["t"]).startswith("the archive does not show which columns these are: names that both versions have")
    assert str(held["u"]).startswith("key column 'k' is new")
    assert [row["v"] for row in nights.job.rows("public", "u")] == ["v"]


@pytest.mark.soak
def test_within_a_streamed_transaction_and_across_a_truncate(nights: Nights) -> None:
    """A rolled-back change has no effect, and rows before a truncate need no conversion."""
    v1, v2, v3 = typed("t", 1, "a"), typed("t", 1, "a", "b"), typed("t", 1, ("a", INT4), "b")
    nights.run(nights.commit(v1, insert("1", "a1", oid=1)))
    messages = [
        *segment(7, v1, insert("2", "a2", oid=1), first=True),
        *segment(7, in_subtransaction(8, typed("t", 1, "other")), in_subtransaction(8, insert("3", "x", oid=1))),
        *stream_abort(7, 8),
        *segment(7, v2, insert("4", "a4", "b4", oid=1)),
        *segment(9, v3, insert("5", "5", "b5", oid=1), first=True),
        *stream_abort(9),
        *stream_commit(7, 1000),
    ]
    nights.lsn = 1000
    nights.run(messages)
    nights.assert_as_replayed()
    assert {(row["id"], row["a"], row["b"]) for row in nights.job.rows("public", "t")} == {
        (1, "a1", None), (2, "a2", None), (4, "a4", "b4"),
    }  # fmt: skip
    summary = nights.run(
        nights.commit(v2, insert("6", "no number", None, oid=1), v3, truncate(1), insert("7", "7", "b7", oid=1))
    )
    nights.assert_as_replayed()
    assert summary.tables[0].notes == ("column retyped: a", "truncated")
    assert [(row["id"], row["a"]) for row in nights.job.rows("public", "t")] == [(7, 7)]


@pytest.mark.soak
def test_an_uncertain_key_conversion_restores_and_holds_the_table(nights: Nights) -> None:
    """The error occurs while rows are converted, after an earlier span was written."""
    old, new = table(("k", NUMERIC), "v", key=["k"]), table(("k", INT4), "v", key=["k"])
    nights.run(nights.commit(old, insert("1.5", "stays")))
    summary = nights.run(
        [
            *nights.commit(table(("k", NUMERIC), "v", "w", key=["k"]), insert("7", "taken back", "w")),
            *nights.commit(new, insert("2", "x")),
            *nights.commit(typed("other", 2, "v"), insert("1", "v", oid=2)),
        ]
    )
    assert summary.exit_code == 3
    reasons = {t.table: t.held for t in summary.tables}
    assert str(reasons["t"]).startswith("the type of key column 'k' changed from numeric to int4")
    assert reasons["other"] is None
    assert [(row["k"], row["v"]) for row in nights.job.rows("public", "t")] == [("1.5", "stays")]
    assert nights.job.columns("public", "t") == ["k", "v"]


@pytest.mark.soak
def test_a_newly_published_column_is_unknown_in_existing_rows(nights: Nights) -> None:
    nights.run(nights.commit(typed("t", 1, "z"), insert("1", "z1", oid=1), insert("2", "z2", oid=1)))
    wider = typed("t", 1, ("a", INT4), "z")
    summary = nights.run(nights.commit(wider, insert("3", "3", "z3", oid=1), update("2", "2", "z2", oid=1)))
    nights.assert_as_replayed()
    assert summary.tables[0].notes == ("column newly published: a",)
    odd = {row["id"]: row["_pg_unrepresentable"] for row in nights.job.rows("public", "t")}
    assert odd == {1: [("a", None)], 2: None, 3: None}


@pytest.mark.soak
def test_a_truncate_resolves_every_ambiguity(nights: Nights) -> None:
    nights.run(nights.commit(typed("t", 1, "a", "b"), insert("1", "a", "b", oid=1)))
    exchanged = nights.commit(typed("t", 1, "b", "a"), insert("2", "b", "a", oid=1), truncate(1))
    summary = nights.run([*exchanged, *nights.commit(insert("3", "b3", "a3", oid=1))])
    assert summary.exit_code == 0
    nights.assert_as_replayed()
    assert [(row["id"], row["a"]) for row in nights.job.rows("public", "t")] == [(3, "a3")]


@pytest.mark.soak
def test_metadata_columns_follow_renamed_and_dropped_columns(nights: Nights) -> None:
    """Entries of renamed columns get the new name. Entries of dropped columns go, before a new column has that name."""
    before = typed("t", 1, "a", ("d", DATE), "z")
    nights.overrides = ("tables=[{match: public.t, columns: {b: {renamed_from: a}}}]",)
    nights.run(
        nights.commit(before, update("1", TOAST, "infinity", "z1", oid=1), insert("2", "a", "infinity", "z2", oid=1))
    )
    nights.run(nights.commit(typed("t", 1, "b", "z"), insert("3", "b", "z3", oid=1)))
    nights.assert_as_replayed({"public.t": {"b": "a"}})
    odd = {row["id"]: row["_pg_unrepresentable"] for row in nights.job.rows("public", "t")}
    assert odd == {1: [("b", None)], 2: None, 3: None}
    nights.run(nights.commit(typed("t", 1, "b", "z", ("d", DATE)), insert("4", "b", "z3", "2024-01-01", oid=1)))
    nights.assert_as_replayed({"public.t": {"b": "a"}})
    nights.run(nights.commit(typed("t", 1, "z", ("d", DATE)), insert("5", "z", None, oid=1)))
    nights.assert_as_replayed({"public.t": {"b": "a"}})


@pytest.mark.soak
def test_lists_and_maps_whose_type_changes(nights: Nights) -> None:
    hstore = Type(None, 99, "public", "hstore")
    before = typed("t", 1, ("a", 1007), ("h", 99), ("f", 1022))
    after = typed("t", 1, ("a", 1016), ("h", TEXT), ("f", TEXT))
    pairs = '"a"=>"1", "bb"=>NULL'
    nights.run(
        nights.commit(
            hstore, before, insert("1", "{1,NULL}", pairs, "{1e+10,NaN}", oid=1), insert("2", "{{1}}", "", None, oid=1)
        )
    )
    nights.run(nights.commit(after, insert("3", "{3}", "h", "f", oid=1)))
    nights.assert_as_replayed()
    rows = {row["id"]: (row["a"], row["h"], row["f"]) for row in nights.job.rows("public", "t")}
    assert rows[1] == ([1, None], pairs, "{10000000000,NaN}")
    assert rows[2] == (None, "", None)


@pytest.mark.soak
def test_a_run_that_died_between_two_alter_statements_is_finished(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights.run(nights.commit(typed("t", 1, "a", ("n", INT4), "z"), insert("1", "a1", "1", "z1", oid=1)))
    changed = typed("t", 1, "b", ("n", INT8), "y", "w")
    nights.overrides = ("tables=[{match: 'public.*', columns: {y: {renamed_from: z}}}]",)
    nights.land(
        [
            *nights.commit(typed("t", 1, "b", ("n", INT4), "z"), delete("77", *[None] * 3, oid=1)),
            *nights.commit(changed, insert("2", "b2", "20000000000", "y2", "w2", oid=1)),
        ]
    )
    session = type(nights.job.spark)
    sql = session.sql
    for alters_before_it_dies in (0, 1, 1, 1, 9):
        done = 0

        def dying(self: SparkSession, text: str, *arguments: Any, allowed: int = alters_before_it_dies) -> Any:
            nonlocal done
            if text.startswith("ALTER") and done == allowed:
                raise KeyboardInterrupt
            done += text.startswith("ALTER")
            return sql(self, text, *arguments)

        monkeypatch.setattr(session, "sql", dying)
        try:
            nights.job.run(*nights.overrides)
        except KeyboardInterrupt:
            continue
    monkeypatch.undo()
    nights.assert_as_replayed({"public.t": {"y": "z"}})
    rows = {(row["id"], row["b"], row["n"], row["y"], row["w"]) for row in nights.job.rows("public", "t")}
    assert rows == {(1, "a1", 1, "z1", None), (2, "b2", 20_000_000_000, "y2", "w2")}


@pytest.mark.soak
def test_a_run_that_died_between_two_spans_is_finished(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = [
        typed("t", 1, "a", "x"),
        typed("t", 1, "b", "x", ("n", INT4)),
        typed("t", 1, "b", "x", ("n", INT8)),
        typed("t", 1, "b", "x", ("n", TEXT)),
    ]
    nights.run(nights.commit(versions[0], insert("1", "a1", "x", oid=1)))
    nights.land(
        [
            *nights.commit(versions[1], insert("2", "a2", "x", "2", oid=1)),
            *nights.commit(versions[2], insert("3", "b3", "x", "3", oid=1), update("1", TOAST, "x", "1", oid=1)),
            *nights.commit(versions[3], insert("4", "b4", "x", "four", oid=1)),
        ]
    )
    for effects_before_it_dies in (1, 1, 2, 1):
        with monkeypatch.context() as patched:
            effects = count(1)

            def die_or(effect: Callable[..., Any], *arguments: Any, last: int, effects: count[int] = effects) -> Any:
                if next(effects) > last:
                    raise KeyboardInterrupt
                return effect(*arguments)

            for module, name in ((merge, "write"), (evolve, "_alter"), (evolve, "overwrite")):
                dying = partial(die_or, getattr(module, name), last=effects_before_it_dies)
                patched.setattr(module, name, dying)
            with pytest.raises(KeyboardInterrupt):
                nights.job.run()
    summary = nights.job.run()
    assert [c.state.value for c in summary.conditions] == ["ambiguous"], "n may be a new column of the same name"
    nights.assert_as_replayed()
    rows = {(row["id"], row["b"], row["n"]) for row in nights.job.rows("public", "t")}
    assert rows == {(1, "a1", "1"), (2, "a2", "2"), (3, "b3", "3"), (4, "b4", "four")}


@pytest.mark.soak
def test_a_declaration_releases_the_change_of_a_key_to_another_column(nights: Nights) -> None:
    """The zero-downtime change to bigint, in every mode, with unchanged TOAST and deletes after it."""
    modes = {mode: oid for oid, mode in enumerate(("mirror", "soft_delete", "history", "append"), 1)}
    rules = [f"match: public.{mode}, mode: {mode}" for mode in modes]
    declared = "columns: {id: {renamed_from: id_big}}"
    nights.overrides = (f"tables=[{', '.join(f'{{{rule}}}' for rule in rules)}]",)
    rows = [(str(i), "a", f"long {i}", str(i)) for i in range(1, 5)]
    for mode, oid in modes.items():
        old = table(("id", INT4), "v", "w", ("id_big", INT8), name=mode, oid=oid)
        nights.land(nights.commit(old, *(insert(*row, oid=oid) for row in rows)))
    assert nights.job.run(*nights.overrides).exit_code == 0
    for mode, oid in modes.items():
        new = table("v", "w", ("id", INT8), name=mode, key=["id"], oid=oid)
        moved = update("a", TOAST, "40", old_key=(None, None, "4"), oid=oid)
        changes = (update("b", TOAST, "2", oid=oid), delete(None, None, "3", oid=oid), moved)
        nights.land(nights.commit(new, insert("c", None, "3000000000", oid=oid), *changes))
    summary = nights.job.run(*nights.overrides)
    for held in summary.tables:
        assert "are out of order. Declare it: columns: {id: {renamed_from: id_big}};" in str(held.held), held
    nights.overrides = (f"tables=[{', '.join(f'{{{rule}, {declared}}}' for rule in rules)}]",)
    redriven = nights.job.backfill(BackfillRequest(None), *nights.overrides)
    assert redriven.exit_code == 0
    for oid in modes.values():
        nights.land(nights.commit(delete(None, None, "1", oid=oid), update("d", TOAST, "40", oid=oid)))
    assert nights.job.run(*nights.overrides).exit_code == 0
    expected = {(2, "b", "long 2"), (40, "d", "long 4"), (3000000000, "c", None)}
    for mode in ("mirror", "soft_delete", "history"):
        stored = nights.job.spark.read.format("delta").load(str(nights.job.path("public", mode)))
        found = current_rows(stored, Mode(mode)).toArrow().to_pylist()
        assert {(row["id"], row["v"], row["w"]) for row in found} == expected, mode
    assert len(nights.job.rows("public", "append")) == 10

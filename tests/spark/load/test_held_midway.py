"""Tables that a batch must hold after it has written or moved them: nothing is lost, and a rebuild frees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from pgoutput_etl.errors import RunError, TableError
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.targets import DeltaChanges, SpanWrite
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.targets.plan import SchemaSpan, TableTask
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.files.report import RunSummary
from tests.support.jobs import Nights, dying, held
from tests.support.small_archives import T, insert, table, transaction, update

pytestmark = pytest.mark.spark

U = T + 1

OF_T = BackfillRequest(tables=("public.t",))


@contextmanager
def failing(oid: int, number: int = 0) -> Iterator[None]:
    """Within the context, a table's schema span with this number can't be written."""
    original = DeltaChanges.prepared

    def prepared(self: DeltaChanges, task: TableTask, span: SchemaSpan) -> SpanWrite:
        if task.oid == oid and task.spans.index(span) == number:
            raise TableError("planted")
        return original(self, task, span)

    with patch.object(DeltaChanges, "prepared", prepared):
        yield


def held_night(nights: Nights, oid: int, dies: bool, number: int = 0, *overrides: str) -> RunSummary:
    """A night in which a table fails. dies: so does the run, and the next one finishes it."""
    if dies:
        with failing(oid, number), dying(DeltaLedger, "close"):
            nights.job.run(*overrides)
        return nights.job.run(*overrides)
    with failing(oid, number):
        return nights.job.run(*overrides)


def values(nights: Nights, path: str) -> list[tuple[Any, ...]]:
    """Below the target, without metadata columns."""
    rows = read_table(nights.job.spark, Place(str(nights.job.folder / "tables" / path)))
    return sorted(tuple(row) for row in rows.drop(*(c for c in rows.columns if c.startswith("_pg_"))).collect())


DIES = pytest.mark.parametrize("dies", [True, pytest.param(False, marks=pytest.mark.soak)])


@pytest.mark.soak
@DIES
def test_the_spans_before_the_one_that_fails_are_undone(nights: Nights, dies: bool) -> None:
    """The run that finishes a dead one holds the table, too, although nothing would fail any more."""
    nights.night(transaction(1, 0x100, table("id", "v"), insert("1", "a")))
    nights.land(
        transaction(2, 0x200, insert("2", "b")),
        transaction(3, 0x300, table("id", "v", "w"), insert("3", "c", "d")),
    )
    assert held(held_night(nights, T, dies, 1)) == {"t": "planted"}
    assert nights.values("t") == [("1", "a")]
    assert nights.job.backfill(OF_T).exit_code == 0
    assert nights.values("t") == [("1", "a", None), ("2", "b", None), ("3", "c", "d")]


@pytest.mark.soak
def test_a_hold_undoes_column_mapping_that_a_rename_turned_on(nights: Nights) -> None:
    nights.job.overrides.append("target.readers=auto")
    nights.night(transaction(1, 0x100, table("id", "v", "z"), insert("1", "a", "z")))
    nights.land(
        transaction(2, 0x200, insert("2", "b", "z")),
        transaction(3, 0x300, table("id", "w", "z"), insert("3", "c", "z")),
    )
    assert held(held_night(nights, T, True, 1)) == {"t": "planted"}
    assert (nights.values("t"), nights.job.columns("public", "t")) == ([("1", "a", "z")], ["id", "v", "z"])
    assert nights.job.backfill(OF_T).exit_code == 0
    assert nights.values("t") == [("1", "a", "z"), ("2", "b", "z"), ("3", "c", "z")]
    summary = nights.night(transaction(4, 0x400, table("id", "x", "z"), insert("4", "d", "z")))
    assert "column mapping on: column 'w' is renamed" in summary.tables[0].notes
    assert len(nights.values("t")) == 4


@pytest.mark.soak
def test_what_others_set_in_a_table_outlasts_its_hold(nights: Nights) -> None:
    """The first hold has written nothing, the second has written a span, which alone is undone."""
    nights.night(transaction(1, 0x100, table("id", "v"), table("id", oid=U, name="u"), insert("1", "a")))
    nights.land(transaction(2, 0x200, insert("1", oid=U)))
    nights.job.run()
    for name in "tu":
        place = f"delta.`{nights.job.folder}/tables/public/{name}`"
        nights.job.spark.sql(f"ALTER TABLE {place} ADD CONSTRAINT short CHECK (length(id) < 3)")
        nights.job.spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('team' = 'somebody')")
        nights.job.spark.sql(f"ALTER TABLE {place} ALTER COLUMN id COMMENT 'theirs'")
    nights.land(
        transaction(3, 0x300, insert("2", "b"), insert("1000", oid=U)),
        transaction(4, 0x400, table("id", "v", "w"), insert("1000", "c", "d")),
    )
    assert held(nights.job.run()).keys() == {"t", "u"}
    assert (nights.values("t"), nights.values("u")) == ([("1", "a")], [("1",)])
    for name in "tu":
        place = f"delta.`{nights.job.folder}/tables/public/{name}`"
        stored = nights.job.spark.sql(f"DESCRIBE DETAIL {place}").collect()[0]["properties"]
        assert (stored.get("delta.constraints.short"), stored.get("team")) == ("length ( id ) < 3", "somebody")
        assert nights.job.spark.table(place).schema["id"].metadata.get("comment") == "theirs"


@pytest.mark.soak
@DIES
def test_a_new_table_that_fails_leaves_its_name_free(nights: Nights, dies: bool) -> None:
    """An older table had the name, whose rows are moved out of the way."""
    nights.night(transaction(1, 0x100, table("id", "v"), insert("1", "a")))
    nights.land(transaction(2, 0x200, table("id", "w", oid=U), insert("2", "b", oid=U)))
    assert held(held_night(nights, U, dies)) == {"t": "planted"}
    assert values(nights, "public/t") == []
    assert values(nights, f"_pgoutput_etl/displaced/test/{T}") == [("1", "a")]
    assert nights.job.backfill(OF_T).exit_code == 0
    assert values(nights, "public/t") == [("2", "b")]


@pytest.mark.soak
@DIES
def test_a_table_that_fails_after_it_moved_is_at_its_old_path(nights: Nights, dies: bool) -> None:
    nights.night(transaction(1, 0x100, table("id", "v"), insert("1", "a")))
    nights.land(transaction(2, 0x200, insert("2", "b")))
    renamed = "tables=[{match: public.t, rename: public.u}]"
    assert held(held_night(nights, T, dies, 0, renamed)) == {"t": "planted"}
    assert (values(nights, "public/t"), values(nights, "public/u")) == ([("1", "a")], [])
    assert nights.job.backfill(OF_T, renamed).exit_code == 0
    nights.land(transaction(3, 0x300, update("1", "x")))
    assert nights.job.run(renamed).exit_code == 0
    assert (values(nights, "public/t"), values(nights, "public/u")) == ([], [("1", "x"), ("2", "b")])


SWAPPED = "tables=[{match: public.t, rename: public.v}, {match: public.u, rename: public.t}]"


@pytest.mark.soak
@DIES
def test_rows_make_room_if_another_table_takes_their_path(nights: Nights, dies: bool) -> None:
    """In the same night the configuration gives both tables other names, and the one that has to leave fails."""
    nights.night(
        transaction(
            1, 0x100, table("id", "v"), table("id", "v", oid=U, name="u"), insert("1", "t"), insert("1", "u", oid=U)
        )
    )
    nights.land(transaction(2, 0x200, insert("2", "t"), insert("2", "u", oid=U)))
    assert held(held_night(nights, T, dies, 0, SWAPPED)) == {"t": "planted"}
    assert values(nights, "public/t") == [("1", "u"), ("2", "u")]
    assert values(nights, f"_pgoutput_etl/displaced/test/{T}") == [("1", "t")]
    assert values(nights, "public/u") == values(nights, "public/v") == []
    assert nights.job.backfill(OF_T, SWAPPED).exit_code == 0
    nights.land(transaction(3, 0x300, insert("3", "t"), insert("3", "u", oid=U)))
    assert nights.job.run(SWAPPED).exit_code == 0
    assert [v for v, _ in values(nights, "public/v")] == [v for v, _ in values(nights, "public/t")] == ["1", "2", "3"]


@pytest.mark.soak
@pytest.mark.parametrize("skips", [True, False])
def test_a_held_table_makes_room(nights: Nights, skips: bool) -> None:
    """Another table gets its name from the configuration. A rebuild must not overwrite that one."""
    holding = "on_schema_change: {add: hold}"
    rule = "skip: true" if skips else f"{holding}, rename: public.v"
    begun = f"tables=[{{match: public.t, {holding}}}]"
    nights.night(transaction(1, 0x100, table("id"), table("id", oid=U, name="u"), insert("t1"), insert("u1", oid=U)))
    nights.land(transaction(2, 0x200, table("id", "w"), insert("t2", "w")))
    assert "t" in held(nights.job.run(begun))
    taken = f"tables=[{{match: public.t, {rule}}}, {{match: public.u, rename: public.t}}]"
    nights.land(transaction(3, 0x300, insert("u3", oid=U)))
    nights.job.run(taken)
    assert values(nights, "public/t") == [("u1",), ("u3",)]
    assert values(nights, f"_pgoutput_etl/displaced/test/{T}") == [("t1",)]
    taken = taken.replace("skip: true", "rename: public.v")
    assert nights.job.backfill(OF_T, taken).exit_code == 0
    nights.land(transaction(4, 0x400, insert("t4", "w")))
    assert nights.job.run(taken).exit_code == 0
    assert values(nights, "public/t") == [("u1",), ("u3",)]
    assert values(nights, "public/v") == [("t1", None), ("t2", "w"), ("t4", "w")]


def test_a_backfill_is_finished_under_its_configuration(nights: Nights) -> None:
    nights.night(transaction(1, 0x100, table("id", "v"), insert("1", "a"), insert("2", "b")))
    with dying(DeltaLedger, "close_backfill"):
        nights.job.backfill(OF_T)
    for other in ("tables=[{match: '*', mode: history}]", "tables=[{match: public.t, skip: true}]"):
        with pytest.raises(
            RunError, match=r"batch 2 was begun under another configuration .*: tables, for public\.t\."
        ):
            nights.job.run(other)
    nights.land(transaction(2, 0x200, insert("3", "c")))
    assert nights.job.run("tables=[{match: public.other, mode: history}]").exit_code == 0
    assert nights.values("t") == [("1", "a"), ("2", "b"), ("3", "c")]


@pytest.mark.soak
def test_an_enum_named_like_an_extensions_type_holds_its_table_until_it_is_declared(nights: Nights) -> None:
    """As PostgreSQL sends them: neither the Type message nor the column says that the type is an enum."""
    named = Type(None, 20_000, "app", "vector")
    tables = (table("id", ("v", 20_000)), table("id", "w", oid=U, name="u"))
    night = nights.night(transaction(1, 0x100, named, *tables, insert("1", "north"), insert("1", "x", oid=U)))
    assert night.exit_code == 3
    [(name, reason)] = held(night).items()
    assert name == "t"
    assert 'declare it (types: {"app.vector": text})' in reason
    assert "north" not in reason
    assert nights.values("u") == [("1", "x")]
    nights.job.overrides.append("types={app.vector: text}")
    assert nights.job.backfill(OF_T).exit_code == 0
    assert not held(nights.night(transaction(2, 0x200, insert("2", "south"))))
    assert nights.values("t") == [("1", "north"), ("2", "south")]

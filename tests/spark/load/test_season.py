"""The tables of a season: five nights in every mode."""

from __future__ import annotations

import pytest

from tests.support.kept_rows import as_of
from tests.support.season import Season

pytestmark = pytest.mark.spark


def test_a_mirror_has_the_last_row_of_each_key(season: Season) -> None:
    assert season.values("orders") == [("1", "again", None), ("3", "c", None), ("4", "d", "w"), ("5", "e", None)]


def test_a_rolled_back_column_is_not_added(season: Season) -> None:
    assert season.nights.job.columns("public", "orders") == ["id", "v", "w"]


def test_a_renamed_table_keeps_its_rows(season: Season) -> None:
    assert season.values("lines_2") == [("1", "a"), ("2", "c")]
    assert season.values("lines") == []


def test_a_bag_loses_one_of_equal_rows(season: Season) -> None:
    assert sorted(season.values("bag"), key=repr) == [("x", "1"), ("x", "1"), ("y", None)]


def test_a_truncate_removes_earlier_rows_only(season: Season) -> None:
    assert season.values("emptied") == [("3", "c")]


def test_soft_delete_marks_the_deleted_row(season: Season) -> None:
    rows = season.nights.job.rows("public", "soft")
    assert {(row["id"], row["v"]): row["_pg_deleted"] for row in rows} == {("1", "aa"): False, ("2", "b"): True}


def test_history_has_each_version_between_its_commits(season: Season) -> None:
    rows = season.nights.job.rows("public", "past")
    versions = {(row["id"], row["v"]): (row["_pg_valid_from_lsn"], row["_pg_valid_to_lsn"]) for row in rows}
    assert versions == {("1", "a"): (0x100, 0x200), ("1", "aa"): (0x200, None), ("2", "b"): (0x180, 0x220)}


@pytest.mark.parametrize(
    ("lsn", "values"),
    [
        (0xFF, []),
        (0x180, [("1", "a"), ("2", "b")]),
        (0x200, [("1", "aa"), ("2", "b")]),
        (0x220, [("1", "aa")]),
    ],
)
def test_history_as_of_a_commit(season: Season, lsn: int, values: list[tuple[str, str]]) -> None:
    rows = as_of(season.nights.job.rows("public", "past"), lsn)
    assert sorted((row["id"], row["v"]) for row in rows) == values


def test_append_has_every_change_in_order(season: Season) -> None:
    rows = sorted(season.nights.job.rows("public", "events"), key=lambda row: (row["_pg_commit_lsn"], row["_pg_seq"]))
    assert [(row["_pg_op"], row["id"], row["v"]) for row in rows] == [
        ("I", "1", "a"),
        ("I", "2", "b"),
        ("U", "1", "aa"),
        ("D", "2", None),
    ]


def test_every_row_names_the_commit_that_wrote_it(season: Season) -> None:
    rows = season.nights.job.rows("public", "orders")
    assert {row["id"]: (row["_pg_commit_lsn"], row["_pg_xid"]) for row in rows} == {
        "1": (0x440, 7),
        "3": (0x1C0, 10),
        "4": (0x380, 12),
        "5": (0x500, 20),
    }

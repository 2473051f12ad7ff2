"""The part of a layout that a table can have."""

from __future__ import annotations

import pytest

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.schema.layout import Layout, Readers
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.targets.layout import fitting
from tests.support.small_archives import T, table

BOOL, BYTEA, INT8, NUMERIC, TIMESTAMPTZ, INT4_ARRAY, JSONB = 16, 17, 20, 1700, 1184, 1007, 3802
TYPES = {"b": BOOL, "y": BYTEA, "n": INT8, "d": NUMERIC, "at": TIMESTAMPTZ, "a": INT4_ARRAY, "j": JSONB}


def shape_of(*more: str) -> TableShape:
    relation = table("id", *((name, TYPES[name]) for name in TYPES), *more)
    return table_shape(relation, RelationVersions(T, (relation,), {None: (((0, 0), 0),)}), None)


@pytest.mark.parametrize(
    ("layout", "mode", "why"),
    [
        (Layout(cluster_by=("id", "n", "at", "j")), Mode.MIRROR, None),
        (Layout(cluster_by=("_pg_commit_ts", "_pg_valid_to_ts")), Mode.HISTORY, None),
        (Layout(cluster_by=("_pg_valid_to_ts",)), Mode.MIRROR, "not clustered: it has no column '_pg_valid_to_ts'"),
        (Layout(cluster_by=("n", "b")), Mode.MIRROR, "not clustered: column 'b' has a type that Delta has no statis"),
        (Layout(cluster_by=("a",)), Mode.MIRROR, "not clustered: column 'a' has a type that Delta has no statistics"),
        (Layout(cluster_by=("_pg_deleted",)), Mode.SOFT_DELETE, "not clustered: column '_pg_deleted' has a type"),
        (Layout(partition_by=("b", "_pg_deleted")), Mode.SOFT_DELETE, None),
        (Layout(partition_by=("n", "id")), Mode.MIRROR, "not partitioned: column 'id' may have an empty text"),
        (Layout(partition_by=("n", "N")), Mode.MIRROR, "not partitioned: it has no column 'N'"),
        (Layout(partition_by=("y",)), Mode.MIRROR, "not partitioned: column 'y' has a type that Delta can't partition"),
        (Layout(partition_by=("a",)), Mode.MIRROR, "not partitioned: column 'a' has a type that Delta can't partition"),
        (Layout(partition_by=("_pg_unrepresentable",)), Mode.APPEND, "not partitioned: column '_pg_unrepresentable'"),
    ],
)
def test_columns_that_a_table_lacks_or_delta_refuses(layout: Layout, mode: Mode, why: str | None) -> None:
    fit, remarks = fitting(layout, shape_of(), mode)
    if why is None:
        assert (fit, remarks) == (layout, ())
    else:
        assert fit == Layout()
        assert remarks[0].startswith(why)


@pytest.mark.parametrize(
    ("properties", "fits"),
    [
        ({}, False),
        ({"delta.dataSkippingNumIndexedCols": "48"}, True),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, True),
        ({"delta.dataSkippingStatsColumns": "c39"}, True),
        ({"delta.checkpointInterval": "7"}, False),
    ],
)
def test_a_column_beyond_those_with_statistics(properties: dict[str, str], fits: bool) -> None:
    layout = Layout(cluster_by=("c39",), properties=properties)
    fit, remarks = fitting(layout, shape_of(*(f"c{n}" for n in range(40))), Mode.MIRROR)
    assert fit.properties == properties
    assert (fit.cluster_by == ("c39",)) is fits
    assert fits is not any("name it in delta.dataSkippingStatsColumns" in remark for remark in remarks)


@pytest.mark.parametrize(
    ("listed", "fits", "remarks"),
    [
        ("id, `N` ,at", "id, `N` ,at", []),
        ("", "", []),
        ("id,gone,b,y,n", "id,n", [("gone", "no such column"), ("b", "has none for"), ("y", "has none for")]),
        ("`gone,too`,a", None, [("gone,too", "no such column"), ("a", "has none for")]),
        ("`a``b,c`,id.x", "`a``b,c`", [("id.x", "no such column")]),
    ],
)
def test_statistics_of_columns_that_a_table_lacks_or_delta_refuses(
    listed: str, fits: str | None, remarks: list[tuple[str, str]]
) -> None:
    name = "delta.dataSkippingStatsColumns"
    layout, found = fitting(Layout(properties={name: listed, "x.y": "z"}), shape_of("a`b,c"), Mode.MIRROR)
    assert dict(layout.properties) == {"x.y": "z", **({} if fits is None else {name: fits})}
    assert len(found) == len(remarks)
    for remark, (column, why) in zip(found, remarks, strict=True):
        assert remark.startswith(f"without statistics of column {column!r}: ")
        assert why in remark


def test_statistics_of_a_partition_column_and_clustering_without_statistics() -> None:
    properties = {"delta.dataSkippingStatsColumns": "id,n"}
    layout, remarks = fitting(Layout(partition_by=("n",), properties=properties), shape_of(), Mode.MIRROR)
    assert layout == Layout(partition_by=("n",), properties={"delta.dataSkippingStatsColumns": "id"})
    assert remarks == ("without statistics of column 'n': the table is partitioned by it",)
    layout, remarks = fitting(Layout(cluster_by=("at",), properties=properties), shape_of(), Mode.MIRROR)
    assert layout == Layout(properties=properties)
    assert ["'at' is not among those that Delta has statistics for" in remark for remark in remarks] == [True]


@pytest.mark.parametrize("name", ["_change_type", "_Commit_Version", "_COMMIT_TIMESTAMP"])
@pytest.mark.parametrize("is_on", [True, False])
def test_a_column_with_the_name_of_one_of_the_feed(name: str, is_on: bool) -> None:
    properties = {"delta.enableChangeDataFeed": str(is_on).lower()}
    layout, remarks = fitting(Layout(properties=properties), shape_of(name), Mode.MIRROR)
    assert layout == Layout(properties={"delta.enableChangeDataFeed": "false"})
    assert [name in remark for remark in remarks] == ([True] if is_on else [])


@pytest.mark.parametrize(
    ("names", "remark"),
    [
        (("a b",), "not for all readers: the name of column 'a b' has a character"),
        (("x=y", "z"), "not for all readers: the name of column 'x=y' has a character"),
        (("ä.`", "z"), None),
    ],
)
def test_tables_that_not_all_readers_can_open(names: tuple[str, ...], remark: str | None) -> None:
    layout, remarks = fitting(Layout(readers=Readers.ALL, cluster_by=("n",)), shape_of(*names), Mode.MIRROR)
    assert layout == Layout(readers=Readers.ALL if remark is None else Readers.SPARK, cluster_by=("n",))
    assert [r.startswith(remark or "") for r in remarks] == ([] if remark is None else [True])
    # With AUTO, the table gets what it needs: nothing of its layout is missing.
    assert fitting(Layout(readers=Readers.AUTO), shape_of(*names), Mode.MIRROR) == (Layout(readers=Readers.AUTO), ())


def test_only_all_readers_ask_for_a_change_of_existing_tables() -> None:
    assert [readers for readers in Readers if Layout(readers=readers)] == [Readers.ALL]
    assert all(Layout(comment="a", readers=readers) for readers in Readers)

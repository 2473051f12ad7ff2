"""The snapshot job's options, its order in the ledger, and its queries to a server."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.postgres import queries
from pgoutput_etl.postgres.catalog import read_catalog
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity, Type
from pgoutput_etl.work.kinds.snapshot_order import Repair, SnapshotOrder
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest

URL = "postgresql://db/shop"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected one of --server, --csv, --copy and --dump"),
        ({"server": URL, "files": "x"}, "expected one of"),
        ({"files": "x"}, "--lsn: expected the LSN at which the rows were taken"),
        ({"server": URL, "lsn": 7}, "--snapshot and --lsn: expected both"),
        ({"server": URL, "snapshot": "0-1-1"}, "--snapshot and --lsn: expected both"),
        ({"files": "x", "lsn": 7, "snapshot": "0-1-1"}, "--snapshot: expected only with --server"),
        ({"server": URL, "lsn": 7, "snapshot": "'; x"}, "--snapshot: expected the snapshot's name"),
        ({"server": URL, "catalog": "x"}, "--catalog: expected only with files"),
        ({"files": "x", "lsn": 7, "columns": ("a",)}, "--columns: expected only with --copy"),
        ({"server": f"{URL}?password=SECRET"}, "a password on a command line"),
        ({"server": "jdbc:mysql://db"}, "expected postgresql://"),
        ({"server": URL, "connections": 0}, "--connections: expected 1 to 64"),
        ({"files": "x", "lsn": 7, "checks_only": True}, "--check: expected --server"),
        ({"files": "x", "lsn": 7, "slot": "etl"}, "--slot: expected only with --server"),
        ({"server": URL, "slot_lsn": 7}, "--slot-lsn: expected only with --lsn"),
        ({"server": URL, "tables": ()}, "--tables: expected one or more patterns"),
        ({"files": "x", "lsn": 7, "repair": True}, "--repair: expected --server"),
        (
            {"server": URL, "lsn": 7, "snapshot": "0-1-1", "repair": True},
            "--repair: .* without --snapshot",
        ),
        ({"server": URL, "checks_only": True, "repair": True}, "--repair: .* without .* --check"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        SnapshotRequest(**{"tables": ("public.*",), **options}).check()
    assert "SECRET" not in str(refused.value)


def test_valid_options_pass() -> None:
    SnapshotRequest(("*",), server=URL).check()
    SnapshotRequest(("*",), server=f"jdbc:{URL}").check()
    assert SnapshotRequest(("*",), server=f"jdbc:{URL}").url == URL
    SnapshotRequest(("*",), 7, server=URL, snapshot="0-1-1", slot="etl", slot_lsn=7).check()
    SnapshotRequest(("*",), 7, server=URL, checks_only=True).check()
    SnapshotRequest(("*",), 7, files="x", format=RowFormat.BINARY, columns=("a",), catalog="c").check()


def test_an_order_survives_a_round_trip_through_json() -> None:
    relation = Relation(None, 7, "S x", 'T"', ReplicaIdentity.INDEX, (RelationColumn(True, "é", 1700, 12),))
    order = SnapshotOrder(0x200, None, "s3a://lake/staged/1", (relation,), (Type(None, 16999, "public", "mood"),))
    assert SnapshotOrder.from_json(order.to_json()) == order
    repairs = {7: Repair(3, ((-(2**63), 9), (20, 2**63 - 1))), 8: Repair(1, None), 9: Repair(0, ())}
    repair = replace(order, repairs=repairs)
    assert SnapshotOrder.from_json(repair.to_json()) == repair
    assert order.through == 0x1FF


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(1, 64), st.data())
def test_every_key_is_in_exactly_one_share(one: int, other: int, count: int, data: st.DataObject) -> None:
    low, high = sorted((one, other))
    shares = queries.shares_of_integers('the "key"', low, high, count)
    assert 1 <= len(shares) <= count
    key = data.draw(st.integers(low, high))
    assert sum(_holds(share, key) for share in shares) == 1


def _holds(share: str, place: int) -> bool:
    if share == "true":
        return True
    parts = [part.removeprefix('t."the ""key""" ').split() for part in share.split(" AND ")]
    return all(place >= int(bound) if sign == ">=" else place < int(bound) for sign, bound in parts)


def test_every_page_is_in_exactly_one_share() -> None:
    assert queries.shares_of_pages(0, 4) == ["true"]
    assert queries.shares_of_pages(9, 2) == ["t.ctid < '(5,0)'::tid", "t.ctid >= '(5,0)'::tid"]
    for pages in range(40):
        assert len(queries.shares_of_pages(pages, 4)) <= 4


def test_names_are_quoted_and_child_tables_excluded() -> None:
    rows = queries.copied_rows('s"', "t x", ['a"b'], False, ["(b > 3)", 't."a""b" BETWEEN 1 AND 2'])
    assert rows == (
        'COPY (SELECT NULL, t."a""b" FROM ONLY "s"""."t x" AS t WHERE ((b > 3)) AND (t."a""b" BETWEEN 1 AND 2)) '
        "TO STDOUT (FORMAT csv)"
    )
    assert " FROM ONLY " not in queries.copied_rows("s", "t", ["a"], True, [])


def catalog(*publications: dict[str, Any]) -> str:
    column = {"type": 23, "modifier": -1, "not_null": True, "generated": False, "identity": True}
    columns = [{**column, "name": "id"}, {**column, "name": "v", "identity": False}]
    columns.append({**column, "name": "g", "generated": True, "identity": False})
    table = {"oid": 7, "schema": "public", "table": "t", "kind": "r", "identity": "d", "columns": columns}
    return json.dumps({"version": 160000, "tables": [{**table, "publications": publications}], "types": []})


WHOLE = {"name": "whole", "columns": None, "filter": None}
PART = {"name": "part", "columns": ["id"], "filter": None}
FEW = {"name": "few", "columns": ["id", "v"], "filter": "(v > 3)"}


def test_publications_determine_columns_and_filters() -> None:
    [whole] = read_catalog(catalog(WHOLE), (), lambda _: True).tables
    assert [(c.name, c.is_key) for c in whole.relation.columns] == [("id", True), ("v", False)]
    assert whole.filter is None
    [part] = read_catalog(catalog(WHOLE, PART, FEW), ("part",), lambda _: True).tables
    assert [c.name for c in part.relation.columns] == ["id"]
    [few] = read_catalog(catalog(PART, FEW), ("few",), lambda _: True).tables
    assert few.filter == "(v > 3)"
    assert read_catalog(catalog(PART, FEW), (), lambda _: False).tables == ()


@pytest.mark.parametrize(
    ("text", "named", "message"),
    [
        (catalog(WHOLE, PART), (), r"part, whole have different columns of public\.t: name those"),
        (catalog(WHOLE, FEW), (), r"have different rows of public\.t"),
        (catalog(WHOLE), ("none",), "no publication 'none' has tables"),
        ("[]", (), "expected the result of the query of jobs/snapshot.py"),
        ("ERROR", (), "expected the result of the query of jobs/snapshot.py"),
    ],
)
def test_ambiguous_or_invalid_catalogs_are_refused(text: str, named: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_catalog(text, named, lambda _: True)

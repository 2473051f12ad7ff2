"""COPY's text and binary files, and pg_dump's table of contents, from real servers and damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.postgres.copy_format import Field, tuple_of
from pgoutput_etl.postgres.dump import DumpedTable, read_toc
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.framing import COPY_SIGNATURE
from tests.support.copied_rows import binary_rows, text_rows
from tests.support.servers.postgres import Server, Version

# A value with everything that COPY escapes, and names that need quotes in its list of columns.
SETUP = r"""
create schema "S x";
create table "S x"."T ""q" ("a,b" int, "c) FROM stdin;" text, note text);
insert into "S x"."T ""q" values (1, E'\b\f\n\r\t\x0b\\N.\\.', null), (2, '', '\N'), (3, '\.', E'\\x41 \u00e9');
create table public.one ("only" text);
insert into public.one values (''), (null), (''), ('\.');
create table public.empty (a int);
create table public.measured (day int, v text) partition by range (day);
create table public."day 1" partition of public.measured for values from (1) to (2);
create table public.none ();
insert into public.none default values;
"""
ROWS: list[list[Field]] = [
    [b"1", b"\b\f\n\r\t\v\\N.\\.", None],
    [b"2", b"", b"\\N"],
    [b"3", b"\\.", b"\\x41 \xc3\xa9"],
]


@pytest.mark.parametrize("version", [16, 18])
def test_a_dump_of_pg_dump_is_read(version: Version, tmp_path: Path) -> None:
    with Server(version) as server:
        server.psql(SETUP)
        server.pg_dump(tmp_path / "plain", "--compress=0")
        server.pg_dump(tmp_path / "packed")
        oid = int(server.psql("""select '"S x"."T ""q"'::regclass::oid"""))
    toc = read_toc((tmp_path / "plain/toc.dat").read_bytes(), "toc.dat")
    by_name = {(table.schema, table.name): table for table in toc}
    odd, one = by_name["S x", 'T "q'], by_name["public", "one"]
    assert odd == DumpedTable("S x", 'T "q', oid, ("a,b", "c) FROM stdin;", "note"), odd.file)
    assert {name: table.root for (_, name), table in by_name.items() if table.root} == {"day 1": "public.measured"}
    assert by_name["public", "empty"].columns == ("a",)
    assert by_name["public", "none"].columns == ()
    assert sorted(text_rows((tmp_path / "plain" / odd.file).read_bytes(), "", 3)) == ROWS
    fields = list(text_rows((tmp_path / "plain" / one.file).read_bytes(), "", 1))
    assert fields == [[b""], [None], [b""], [b"\\."]]
    assert not list(text_rows((tmp_path / "plain" / by_name["public", "empty"].file).read_bytes(), "", 1))
    assert list(text_rows((tmp_path / "plain" / by_name["public", "none"].file).read_bytes(), "", 0)) == [[]]
    packed = gzip.decompress((tmp_path / "packed" / f"{odd.file}.gz").read_bytes())
    assert sorted(text_rows(packed, "", 3)) == ROWS


@pytest.fixture(scope="module")
def toc(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("toc") / "dump"
    with Server(18) as server:
        server.psql(SETUP)
        server.pg_dump(folder)
        inserts = folder.with_name("inserts")
        server.pg_dump(inserts, "--inserts")
    with pytest.raises(ArchiveError, match="pg_dump without --inserts"):
        read_toc((inserts / "toc.dat").read_bytes(), "toc.dat")
    return (folder / "toc.dat").read_bytes()


def test_a_toc_truncated_anywhere_is_refused(toc: bytes) -> None:
    for end in range(len(toc)):
        with pytest.raises(ArchiveError, match=r"toc\.dat, offset \d+: expected "):
            read_toc(toc[:end], "toc.dat")


@pytest.mark.parametrize("version", [(1, 11), (1, 17), (2, 0)])
def test_another_version_of_pg_dump_is_refused(toc: bytes, version: tuple[int, int]) -> None:
    with pytest.raises(ArchiveError, match=rf"version 1\.12 to 1\.16 .*found {version[0]}\.{version[1]}"):
        read_toc(toc[:5] + bytes(version) + toc[7:], "toc.dat")


@given(st.lists(st.lists(st.none() | st.binary(max_size=9), min_size=2, max_size=2)))
def test_binary_rows_equal_the_written_ones(rows: list[list[Field]]) -> None:
    written = b"".join(
        b"\0\2" + b"".join(b"\xff" * 4 if f is None else len(f).to_bytes(4, "big") + f for f in row) for row in rows
    )
    data = COPY_SIGNATURE + bytes(8) + written + b"\xff\xff"
    assert list(binary_rows(data, "f", 2)) == rows
    for row in rows:
        assert read_tuple(tuple_of(row, b"b")).values == tuple(row)
    for end in range(len(data)):
        with pytest.raises(ArchiveError, match=r"f, offset \d+: expected "):
            list(binary_rows(data[:end], "f", 2))
    if rows:
        with pytest.raises(ArchiveError, match="expected 3 fields in row 0, found 2"):
            list(binary_rows(data, "f", 3))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1\t2\n3\n", "offset 4: expected 2 fields in row 1, found 1"),
        (b"1\t2", "offset 0: expected a newline after row 0: the file is truncated"),
        (b"1\t2\\\n", "expected a character after a backslash"),
    ],
)
def test_invalid_copy_text_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        list(text_rows(data, "f", 2))


def test_escapes_that_other_writers_use() -> None:
    assert list(text_rows(rb"\x41\101\q" + b"\n\\.\nwhatever", "f", 1)) == [[b"AAq"]]


def test_copy_with_oids_is_refused() -> None:
    with pytest.raises(ArchiveError, match="expected rows without OIDs"):
        list(binary_rows(COPY_SIGNATURE + b"\0\1\0\0" + bytes(4), "f", 1))

"""A forged table of contents is read or refused, in memory and time in proportion to its size."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.postgres.dump import DumpedTable, read_toc
from tests.support.dumps import Toc
from tests.support.mutations import no_hang


def test_a_table_of_contents() -> None:
    toc = Toc()
    [table] = read_toc(toc.head(1) + toc.entry(), "toc.dat")
    assert table == DumpedTable("public", "a b", 16384, ("id", 'c"d'), "1.dat")


def test_partitions_have_a_root() -> None:
    toc = Toc()
    attached = [toc.attached('public."R ""x"', "public.middle"), toc.attached("public.middle", 'public."a b"')]
    [table] = read_toc(toc.head(3) + b"".join(attached) + toc.entry(), "toc.dat")
    assert table.root == 'public.R "x'
    circle = [toc.attached('public."a b"', "public.middle"), toc.attached("public.middle", 'public."a b"')]
    [table] = read_toc(toc.head(3) + b"".join(circle) + toc.entry(), "toc.dat")
    assert table.root == "public.a b"


@pytest.mark.parametrize("oid", [None, "x", "-1", "9" * 5000, "1\n"])
def test_an_oid_that_is_no_number(oid: str | None) -> None:
    toc = Toc()
    with pytest.raises(ArchiveError, match=r"toc\.dat, offset [0-9]+: expected a table's OID"):
        read_toc(toc.head(1) + toc.entry(oid), "toc.dat")


@pytest.mark.parametrize("int_size", [4, 255])
def test_counts_and_lengths_beyond_the_end(int_size: int) -> None:
    toc = Toc(int_size)
    huge = 2**31 - 1 if int_size == 4 else 2**2000
    with no_hang(10), pytest.raises(ArchiveError, match="found the file's end"):
        read_toc(toc.head(huge) + toc.entry(), "toc.dat")
    with no_hang(10), pytest.raises(ArchiveError, match="found the file's end"):
        read_toc(toc.head(1) + toc.number(1) * 2 + toc.number(huge), "toc.dat")


def test_integers_without_bytes_are_zero() -> None:
    with no_hang(10):
        assert read_toc(Toc(4).head(1)[:8] + bytes([0, 8, 3]) + b"\x01" * 1_000_000, "toc.dat") == []


def test_more_columns_than_a_table_has() -> None:
    toc = Toc()
    copy = f"COPY public.t ({'a,' * 5_000_000}a) FROM stdin;"
    data = toc.head(1) + toc.entry(copy=copy)
    tracemalloc.start()
    try:
        with no_hang(30), pytest.raises(ArchiveError, match="expected at most 1,600 columns"):
            read_toc(data, "toc.dat")
        assert tracemalloc.get_traced_memory()[1] < 5 * len(data)
    finally:
        tracemalloc.stop()


def test_mutated_tables_of_contents() -> None:
    toc, dice = Toc(), random.Random(1)
    data = toc.head(3) + toc.entry() + toc.entry(file="../../etc/passwd") + toc.entry(file="/etc/passwd")
    with no_hang(60):
        for _ in range(3000):
            mutated = bytearray(data)
            for _ in range(dice.randint(1, 4)):
                mutated[dice.randrange(len(mutated))] = dice.choice((0, 1, 0x22, 0x28, 0x7F, 0xFF, dice.randrange(256)))
            try:
                read_toc(bytes(mutated[: dice.choice((len(mutated), dice.randrange(len(mutated))))]), "toc.dat")
            except ArchiveError:
                continue

"""Rows of the ledger on local storage: each version of an application is appended once, whoever else writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from pgoutput_etl.ledger.local_append import append_once


def rows(*numbers: int) -> pa.Table:
    return pa.table({"number": pa.array(numbers, pa.int64())})


def stored(folder: Path) -> list[int]:
    numbers: list[int] = DeltaTable(folder).to_pyarrow_table().column("number").to_pylist()
    return sorted(numbers)


def test_a_version_is_appended_once(tmp_path: Path) -> None:
    folder = str(tmp_path / "rows")
    for number in (1, 2, 1):
        assert append_once(folder, rows(number), "a", number)
    assert append_once(folder, rows(3), "b", 1)
    assert stored(tmp_path / "rows") == [1, 2, 3]


def test_zero_is_a_version(tmp_path: Path) -> None:
    folder = str(tmp_path / "rows")
    assert append_once(folder, rows(1), "a", 0)
    assert append_once(folder, rows(2), "a", 0)
    assert stored(tmp_path / "rows") == [1]


def test_columns_of_a_newer_version_are_added(tmp_path: Path) -> None:
    folder = str(tmp_path / "rows")
    append_once(folder, rows(1), "a", 1)
    append_once(folder, rows(2).append_column("text", pa.array(["two"])), "a", 2)
    found = DeltaTable(folder).to_pyarrow_table().sort_by("number")
    assert found.column("text").to_pylist() == [None, "two"]


@pytest.mark.parametrize("exists", [False, True])
def test_of_several_writers_of_one_version_one_appends(tmp_path: Path, exists: bool) -> None:
    """Two writers for each of two applications, at the same moment."""
    for trial in range(10):
        folder = tmp_path / str(trial)
        if exists:
            write_deltalake(folder, rows(0))
        together = Barrier(4)

        def write(number: int, folder: Path = folder, together: Barrier = together) -> bool:
            together.wait()
            return append_once(str(folder), rows(number), f"application {number % 2}", 1)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(write, range(1, 5)))
        found = [number for number in stored(folder) if number]
        assert sorted(number % 2 for number in found) == [0, 1], (trial, found)


def test_spark_is_asked_where_delta_rs_cannot_write(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    write_deltalake(folder, rows(1), commit_properties=CommitProperties(app_transactions=[Transaction("a", 1)]))
    log = folder / "_delta_log" / "00000000000000000001.json"
    log.write_text('{"protocol":{"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["somethingNew"]}}\n')
    assert not append_once(str(folder), rows(2), "a", 2)
    assert not list(folder.glob("_delta_log/*02.json"))

"""A night is light if little has landed since the last batch and the tables are small."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.work.files import light_work
from pgoutput_etl.work.files.light_work import has_few_rows, is_light, is_small
from tests.support.small_ledger import SmallLedger

NIGHT = datetime(2026, 11, 1, 3, tzinfo=timezone.utc)


@pytest.fixture
def ledger(tmp_path: Path) -> SmallLedger:
    return SmallLedger(tmp_path)


def land(ledger: SmallLedger, name: str, size: int, age: int = 0) -> None:
    path = ledger.landing / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(bytes(size))
    if age:
        os.utime(path, (path.stat().st_mtime - age,) * 2)


def table(rows: int | None) -> dict[str, Any]:
    return {"oid": 1, "rows": rows}


def test_the_first_night_counts_every_file(ledger: SmallLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_work, "_BYTES", 1000)
    land(ledger, "a.bin", 600, age=86400)
    assert is_light(ledger.config())
    land(ledger, "deeper/b.bin", 600)
    assert not is_light(ledger.config())


def test_files_from_before_the_last_batch_do_not_count(ledger: SmallLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light_work, "_BYTES", 1000)
    land(ledger, "a.bin", 5000, age=3600)
    ledger.finish(1, NIGHT, 100, [table(10)])
    land(ledger, "b.bin", 500)
    assert is_light(ledger.config())
    land(ledger, "c.bin", 600)
    assert not is_light(ledger.config())


def test_an_archive_is_small_if_all_of_its_files_and_tables_are(
    ledger: SmallLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_work, "_BYTES", 1000)
    monkeypatch.setattr(light_work, "_ROWS", 1000)
    land(ledger, "a.bin", 600, age=3600)
    ledger.finish(1, NIGHT, 100, [table(1000)])
    assert is_small(ledger.config())
    assert not is_small(ledger.config("source.landing=s3a://bucket/landing"))
    assert not is_small(ledger.config("source.landing=/no/such/folder"))
    ledger.finish(2, NIGHT, 200, [table(1001)])
    assert not is_small(ledger.config())
    ledger.finish(3, NIGHT, 300, [table(1)])
    land(ledger, "b.bin", 600)
    assert (is_light(ledger.config()), is_small(ledger.config())) == (True, False), "undo reads old files, too"


@pytest.mark.parametrize(("rows", "expected"), [([600, 400], True), ([600, 401], False), ([None, 10], True)])
def test_large_tables_are_no_light_work(
    rows: list[int | None], expected: bool, ledger: SmallLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light_work, "_ROWS", 1000)
    ledger.finish(1, NIGHT, 100, [table(5000)])
    ledger.finish(2, NIGHT, 200, [table(count) for count in rows])
    assert is_light(ledger.config()) is expected
    assert has_few_rows(ledger.config()) is expected
    assert not has_few_rows(ledger.config("state.root=abfss://lake@store/ledger"))


@pytest.mark.parametrize(
    "override",
    ["source.landing=s3a://bucket/landing", "state.root=abfss://lake@store/ledger", "source.landing=/no/such/folder"],
)
def test_what_cannot_be_seen_is_not_light(override: str, ledger: SmallLedger) -> None:
    assert is_light(ledger.config())
    assert not is_light(ledger.config(override))

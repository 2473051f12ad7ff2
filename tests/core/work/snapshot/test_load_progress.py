"""The progress of a load, and its estimate of the time left."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pgoutput_etl.postgres import queries
from pgoutput_etl.work.snapshot import load_progress
from pgoutput_etl.work.snapshot.load_progress import LoadProgress


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(load_progress, "_EVERY", 0.001)
    return []


def ask(query: str) -> list[dict[str, Any]]:
    return [{"pid": 1, "query": "COPY", "rows": 250}] if query == queries.COPIED else []


def read(lines: list[str], rows: int | None) -> LoadProgress:
    """Reads two tables, and looks at the server during the second."""
    loading = LoadProgress(200_000_000, ask, lines.append)
    loading.done = 100_000_000
    with loading.reading("public.t", rows, 100_000_000):
        while not any("so far" in line for line in lines):
            time.sleep(0.001)
    return loading


def test_an_analyzed_table_has_an_estimate(lines: list[str]) -> None:
    read(lines, 1000)
    assert lines[0] == "reading public.t: about 1,000 rows, 100 MB"
    assert lines[1].startswith("250 rows so far; 125 MB of 200 MB, ")
    assert lines[1].endswith(" left")


def test_a_table_that_was_never_analyzed_has_none_while_it_is_read(lines: list[str]) -> None:
    loading = read(lines, None)
    assert (lines[0], {*lines[1:]}) == ("reading public.t: 100 MB", {"250 rows so far"})
    loading.report(300)
    assert "; 200 MB of 200 MB, " in lines[-1], "the sizes of tables are known"

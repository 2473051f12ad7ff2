"""The ways in which the job writes the changes of a table, whatever their number: tests take each of them."""

from __future__ import annotations

import pytest

from pgoutput_etl.load import change_source, driver_merge, rewrite

# By name: the most bytes of a table that the driver merges, of one that is rewritten, of changes typed on the driver,
# and of changes in one task.
WAYS = {
    "local": (1 << 22, -1, 1 << 20, 1 << 26),
    "rewritten": (-1, 1 << 22, 1 << 20, 1 << 26),
    "merged": (-1, -1, 1 << 20, 1 << 26),
    "exchanged": (-1, -1, -1, 1000),
}

# Merged is in every test run. Tests that name no way usually have the first one.
PARAMETERS = [pytest.param(way, marks=[pytest.mark.soak] * (way != "merged")) for way in WAYS]


def write_as(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    merged, small_table, on_driver, in_one_task = WAYS[way]
    monkeypatch.setattr(driver_merge, "SMALL_BYTES", merged)
    monkeypatch.setattr(rewrite, "SMALL_BYTES", small_table)
    monkeypatch.setattr(change_source, "DRIVER_TABLE_BYTES", on_driver)
    monkeypatch.setattr(change_source, "SINGLE_TASK_BYTES", in_one_task)

"""The model of large nights follows from counted work by arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.model import Costs, LargeNight, Prices, Rates, Requests, estimate, predicted_seconds, rates_of
from pgoutput_etl.load.change_source import SINGLE_TASK_BYTES

# CPU seconds of executors, of their single tasks, and of the driver: of a night, a million messages, a table, a file.
EXECUTORS, SINGLE, DRIVER = (10.0, 8.0, 1.0, 0.01), (1.0, 0.5, 0.25, 0.0), (20.0, 0.0, 0.5, 0.001)


def counted(name: str, cold: bool, messages: int, tables: int, files: int) -> dict[str, Any]:
    """A night as `measure_work` counts it, if costs were exactly those above. A warm night has no fixed costs."""

    def seconds(costs: tuple[float, ...]) -> float:
        fixed, *others = costs
        sizes = (messages / 1e6, tables, files)
        return cold * fixed + sum(cost * size for cost, size in zip(others, sizes, strict=True))

    sizes = {"messages": messages, "tables": tables, "files": files, "bytes": 50 * messages, "shuffled": 25 * messages}
    executors = {"executors": 0.75 * seconds(EXECUTORS), "python_workers": 0.25 * seconds(EXECUTORS)}
    driver = {"driver_python": 0.1 * seconds(DRIVER), "driver_jvm": 0.9 * seconds(DRIVER)}
    return {"night": name, "cold": cold, **sizes, **executors, **driver, "single_cpu": seconds(SINGLE)}


NIGHTS = [
    counted(name, cold, *sizes)
    for cold in (True, False)
    for name, sizes in {
        "pgbench": (3_000_000, 4, 8),
        "pgbench, fewer messages": (500_000, 4, 8),
        "pgbench, more files": (500_000, 4, 1000),
        "tables": (500_000, 60, 8),
        "tables, fewer": (500_000, 10, 8),
    }.items()
]


def test_rates_are_found_in_nights_that_differ_in_one_size() -> None:
    rates = rates_of(NIGHTS, "pgbench")

    def approximately(costs: Costs) -> Any:
        return pytest.approx((costs.fixed, costs.messages, costs.table, costs.file))

    assert approximately(rates.single) == SINGLE
    assert approximately(rates.driver) == DRIVER
    in_parallel = tuple(all_of - single for all_of, single in zip(EXECUTORS, SINGLE, strict=True))
    assert in_parallel == approximately(rates.parallel)
    assert (rates.bytes_per_message, rates.shuffled) == (50, 0.5)


def test_cores_shorten_only_what_is_parallel() -> None:
    rates = Rates(Costs(0, 8, 0, 0), Costs(20, 0, 1, 0), Costs(0, 0, 4, 0), 50, 0.5)
    night, nothing = LargeNight(1e9, 10, 100), Requests((0, 0, 0), (0, 0, 0))

    few, many = (estimate(rates, night, cores, 4, nothing, Prices(1, 1)) for cores in (10, 100))

    assert (few.parallel, many.parallel) == (800, 80)
    assert few.driver == many.driver == 30
    assert few.single == many.single == 10, "four tables at a time"
    assert (few.seconds, many.seconds) == (840, 120)
    assert [few.serial, many.serial] == pytest.approx([40 / 840, 40 / 120])


def test_many_changes_of_a_table_are_reduced_in_many_tasks() -> None:
    per_message = SINGLE_TASK_BYTES / 1e6  # a million messages of a table are reduced in one task
    rates = Rates(Costs(0, 0, 0, 0), Costs(0, 0, 0, 0), Costs(0, 3, 0, 0), per_message, 0.5)
    nothing = Requests((0, 0, 0), (0, 0, 0))

    small, large = (estimate(rates, LargeNight(n, 2, 1), 8, 1, nothing, Prices(1, 1)) for n in (2e6, 10e6))

    assert (small.single, small.parallel) == pytest.approx((6, 0))
    assert (large.single, large.parallel) == pytest.approx((6, 24 / 8))


def test_requests_are_priced_by_their_class() -> None:
    rates = Rates(Costs(0, 1, 0, 0), Costs(0, 0, 0, 0), Costs(0, 0, 0, 0), 50, 0.5)
    requests = Requests(puts=(100, 20, 1), gets=(50, 30, 2))

    night = estimate(rates, LargeNight(1e6, 10, 1000), 1, 4, requests, Prices(put=0.01, get=0.001))

    assert night.requests == (100 + 200 + 1000) + (50 + 300 + 2000)
    assert night.dollars == pytest.approx(1300 * 0.01 + 2350 * 0.001)


def test_a_prediction_needs_the_nights_that_differ_in_one_size() -> None:
    night = LargeNight(2e6, 10, 100)
    in_parallel, in_one_task, driver = 9 + 15 + 7.5 + 1, 1 + 1 + 2.5, 20 + 5 + 0.1

    found = predicted_seconds(NIGHTS, "pgbench", night, 8, 4)

    assert found == pytest.approx(in_parallel / 8 + in_one_task / 4 + driver)
    assert predicted_seconds(NIGHTS, "wide", night, 8, 4) is None
    assert predicted_seconds([], "pgbench", night, 8, 4) is None

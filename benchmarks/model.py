"""A model of large nights: estimates hours and requests on a cluster from the work counted on this machine.

Work that is proportional to messages, tables or files is divided by the number of cores. Two things are not: the
driver's work, and the stages of a table that have a single task. The model adds them to the rest, as if nothing
overlapped, so its time is an upper bound. A table's changes are reduced in one task up to a size, and in many tasks if
there are more. The model ignores reading from the network, idle executors while a stage ends, and larger target tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgoutput_etl.load.change_source import SINGLE_TASK_BYTES

_SIZES = ("messages", "tables", "files")
_MORE_TABLES, _FEWER_TABLES = "tables", "tables, fewer"
_MORE_FILES, _FEWER_FILES = "pgbench, more files", "pgbench, fewer messages"


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds: of a night (fixed), and for each million messages, table and file."""

    fixed: float
    messages: float
    table: float
    file: float

    def of(self, night: LargeNight) -> float:
        return self.fixed + self.messages * night.messages / 1e6 + self.table * night.tables + self.file * night.files


@dataclass(frozen=True, slots=True)
class Rates:
    """The cost of a night of one kind. parallel: on executors, in any number of tasks. driver: of its two processes.
    single: in single-task stages, of which as many run at a time as tables are written. Bytes and messages: of the
    counted archive. shuffled: bytes per byte landed."""

    parallel: Costs
    driver: Costs
    single: Costs
    bytes_per_message: float
    shuffled: float


@dataclass(frozen=True, slots=True)
class LargeNight:
    messages: float
    tables: int
    files: int


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to storage, by price class: puts includes lists. Per night, per changed table, and per file."""

    puts: tuple[float, float, float]
    gets: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per request."""

    put: float
    get: float


# List prices of S3 Standard in us-east-1, November 2026: PUT, COPY, POST, LIST, and GET, SELECT.
S3_PRICES = Prices(put=0.005 / 1000, get=0.0004 / 1000)

# The night of a terabyte in the documentation. Files of 64 MB; tables at a time by the configuration's default.
TERABYTE_TABLES, TERABYTE_FILES, TABLES_AT_A_TIME = 200, 15_625, 4

# Counted by benchmarks/late_storage.py: PUT and LIST, and GET and HEAD, in a night that changes tables; DELETE is free.
# The requests for a landed file are from ADR 31. Further data files of a large table are not included.
REQUESTS = Requests(puts=(125, 12.2, 0.001), gets=(162, 17.6, 7))


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds: at most. serial: the share of them that further cores do not shorten."""

    cores: int
    parallel: float
    driver: float
    single: float
    requests: float
    dollars: float

    @property
    def seconds(self) -> float:
        return self.parallel + self.driver + self.single

    @property
    def serial(self) -> float:
        return (self.driver + self.single) / self.seconds


def fewer_messages(kind: str) -> str:
    """The night that differs from the kind's only in its number of messages."""
    return f"{kind}, fewer messages"


def compared_nights(kind: str) -> set[str]:
    """The nights that `rates_of` needs."""
    return {kind, fewer_messages(kind), _MORE_TABLES, _FEWER_TABLES, _MORE_FILES, _FEWER_FILES}


def rates_of(nights: Iterable[Mapping[str, Any]], kind: str) -> Rates:
    """nights: of measure_work, as dictionaries, all on the same number of workers. kind: the archive whose messages are
    to be multiplied: pgbench, wide, or streamed."""
    warm = {night["night"]: night for night in nights if not night["cold"]}
    cold = {night["night"]: night for night in nights if night["cold"]}
    large, small = warm[kind], cold[fewer_messages(kind)]

    def costs(seconds: Callable[[Mapping[str, Any]], float]) -> Costs:
        def per(size: str, more: str, fewer: str) -> float:
            further: int = warm[more][size] - warm[fewer][size]
            return max((seconds(warm[more]) - seconds(warm[fewer])) / further, 0.0)

        messages = per("messages", kind, fewer_messages(kind)) * 1e6
        table, file = per("tables", _MORE_TABLES, _FEWER_TABLES), per("files", _MORE_FILES, _FEWER_FILES)
        variable = Costs(0.0, messages, table, file).of(LargeNight(*(small[size] for size in _SIZES)))
        return Costs(max(seconds(small) - variable, 0.0), messages, table, file)

    return Rates(
        costs(lambda night: night["executors"] + night["python_workers"] - night["single_cpu"]),
        costs(lambda night: night["driver_python"] + night["driver_jvm"]),
        costs(lambda night: night["single_cpu"]),
        large["bytes"] / large["messages"],
        large["shuffled"] / large["bytes"],
    )


def estimate(
    rates: Rates, night: LargeNight, cores: int, tables_at_a_time: int, requests: Requests, prices: Prices
) -> Estimate:
    in_one_task = min(night.messages, night.tables * SINGLE_TASK_BYTES / rates.bytes_per_message)
    single = rates.single.of(replace(night, messages=in_one_task)) / min(tables_at_a_time, cores)
    reduced_by_many = rates.single.messages * (night.messages - in_one_task) / 1e6
    sizes = (1, night.tables, night.files)
    puts, gets = (sum(n * size for n, size in zip(kind, sizes, strict=True)) for kind in (requests.puts, requests.gets))
    dollars = puts * prices.put + gets * prices.get
    parallel = (rates.parallel.of(night) + reduced_by_many) / cores
    return Estimate(cores, parallel, rates.driver.of(night), single, puts + gets, dollars)


def predicted_seconds(
    nights: Sequence[Mapping[str, Any]], kind: str, night: LargeNight, cores: int, tables_at_a_time: int
) -> float | None:
    """The most that the night takes by counts of this machine; None if not all nights that it needs were counted."""
    if not compared_nights(kind) <= {counted["night"] for counted in nights}:
        return None
    return estimate(rates_of(nights, kind), night, cores, tables_at_a_time, REQUESTS, S3_PRICES).seconds

"""Jobs that read whole tables, each from start to end: a server's dump, the first load, verify, and a backfill."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.cold import configured, pgoutput_etl, repeated
from benchmarks.processes import watched
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, fresh
from tests.support.servers.postgres import Server

Progress = Callable[[str], None]

_ROWS = {"accounts": 2_000_000, "orders": 1_000_000}  # two tables of each kind

_TABLES = {
    "accounts": """
create table {name} (aid int primary key, bid int, abalance int, filler char(84));
insert into {name} select i, i % 10, i * 7, '' from generate_series(1, {rows}) i;
""",
    "orders": """
create table {name} (
  id bigint primary key, customer uuid, at timestamptz not null, price numeric(12, 2), paid bool, note text, tags text[]
);
insert into {name}
  select i, md5(i::text)::uuid, timestamptz '2026-01-01' + i * interval '1 s', i * 0.37, i % 3 = 0,
    case when i % 5 > 0 then repeat('note ' || i, 5) end, array['a', 'b' || i % 100]
  from generate_series(1, {rows}) i;
""",
}
_SIZE = "select sum(pg_relation_size(oid)) from pg_class where relname ~ '^(accounts|orders)_'"


@dataclass(frozen=True, slots=True)
class WholeTables:
    """Medians. cpu: seconds of all processes, the server's too. mb_per_s: of the tables' bytes on the server. memory:
    MB of resident memory of Python and Java at the peak."""

    command: str
    rows: int
    cpu: float
    seconds: float
    rows_per_s: float
    mb_per_s: float
    memory: float | None


def measure_whole_tables(scale: float, runs: int, progress: Progress) -> Iterator[WholeTables]:
    """Yields a row for each command. Every job's first run isn't counted."""
    work, landing = fresh(WORK / "whole"), fresh(WORK / "whole/landing")
    rows = {name: scaled(count, scale, 1000) for name, count in _ROWS.items()}
    with Server(18) as server:
        server.psql("create publication p for all tables")
        server.create_slot("slot")
        for name in (f"{kind}_{number}" for kind in rows for number in range(2)):
            progress(f"writing {name}")
            kind, _ = name.split("_")
            server.psql(_TABLES[kind].format(name=name, rows=rows[kind]))
            server.recvlogical("slot", landing / f"{name}.bin", publications=["p"])
        server.psql("vacuum analyze")
        size = int(server.psql(_SIZE))
        url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        config = configured(work, landing)

        def job(name: str, *arguments: str) -> None:
            pgoutput_etl(name, work, "--config", str(config), *arguments)

        def apply() -> None:
            shutil.rmtree(work / "tables", ignore_errors=True)
            job("apply")

        def dump() -> None:
            shutil.rmtree(work / "dump", ignore_errors=True)
            server.pg_dump(work / "dump", "--jobs=2")

        commands: dict[str, Callable[[], object]] = {
            "pg_dump -Fd --jobs=2": dump,
            "apply of their INSERTs": apply,
            "backfill": partial(job, "backfill", "--tables", "*.*"),
            "snapshot": partial(job, "snapshot", "--tables", "*.*", "--server", url),
            "verify, which finds no difference": partial(job, "verify", "--server", url),
        }
        for command, run in commands.items():
            yield _measured(command, 2 * sum(rows.values()), size, runs, progress, run)


def _measured(
    command: str, rows: int, size: int, runs: int, progress: Progress, run: Callable[[], object]
) -> WholeTables:
    peaks = list[float]()

    def watched_run() -> None:
        with watched() as found:
            run()
        peaks.append(found.total / 1e6)

    cpu, seconds = zip(*repeated(command, runs, progress, watched_run), strict=True)
    memory = median(peaks[1:]) or None
    took = median(seconds)
    return WholeTables(command, rows, median(cpu), took, rows / took, size / 1e6 / took, memory)

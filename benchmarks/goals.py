"""Upper limits for figures: medians of three runs on two quiet cores, at scale 1.

python -m benchmarks small cold --check
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Goal:
    """found: the figure in the results of a part; None if they don't have it."""

    measure: str
    part: str
    found: Callable[[Rows], float | None]
    most: float


@dataclass(frozen=True, slots=True)
class Checked:
    measure: str
    goal: float
    found: float
    reached: bool


def of(figure: str, **names: object) -> Callable[[Rows], float | None]:
    """The figure of the row that has these values."""

    def find(rows: Rows) -> float | None:
        return next((row[figure] for row in rows if names.items() <= row.items()), None)

    return find


def each_further_table(figure: str) -> Callable[[Rows], float | None]:
    """The growth of the figure with each further table of a warm night."""

    def find(rows: Rows) -> float | None:
        by_tables = {row["tables"]: row[figure] for row in rows if row["night"] == "warm" and row["tables"]}
        (few, least), (many, most) = min(by_tables.items()), max(by_tables.items())
        return (most - least) / (many - few) if many > few else None

    return find


GOALS = (
    *(
        Goal(f"the job / Delta's MERGE alone: {name}", "job", of("ratio", scenario=name), most)
        for name, most in (("pgbench", 1.4), ("wide", 1.25), ("streamed", 1.5), ("files", 2.0))
    ),
    Goal("200 small tables, without the start, s", "job", of("job", scenario="tables"), 20),
    Goal("each further small table, s", "small", each_further_table("seconds"), 0.08),
    Goal("each further small table, Spark jobs", "small", each_further_table("jobs"), 1),
    Goal("one table of three rows, with the start, s", "small", of("seconds", night="with its session"), 15),
    Goal("one table of three rows, with the start, CPU s", "small", of("cpu", night="with its session"), 20),
    Goal("a poll with 50 changed tables, s", "small", of("seconds", night="followed", tables=50), 5),
    Goal("the demo, with the start, s", "cold", of("seconds", command="demo"), 15),
    *(
        Goal(f"{command}, with the start, s", "cold", of("seconds", command=command), most)
        for command, most in (
            ("apply of 200 changed tables", 30),
            ("apply of 500 changed tables", 60),
            ("apply of 300 new tables in 300 schemas", 60),
        )
    ),
    *(
        Goal(
            f"{command} small tables, with the start, CPU s", "cold", of("cpu", command=f"{command} small tables"), most
        )
        for command, most in (("verify of 35", 40), ("maintain of 35", 25), ("snapshot of 21", 40))
    ),
)


def checked(results: Mapping[str, Any]) -> Iterator[Checked]:
    """results: by part, of the parts that have run."""
    for goal in GOALS:
        found = goal.found(results[goal.part]) if goal.part in results else None
        if found is not None:
            yield Checked(goal.measure, goal.most, found, found <= goal.most)

"""Runs the benchmarks, prints their figures, and saves them to build/bench/bench.json.

    python -m benchmarks [decoding typing job baselines small cold whole late merge nights growth memory heap
        known work sizes] [--scale 0.1] [--runs 3] [--only pgbench] [--check]
    python -m benchmarks larger [--cores 16] [--memory 32g] [--storage s3a://bucket/folder] [--json machine.json]
        [--master, --conf, and other options of spark-submit]

Machines differ, and so does one machine over time: compare the ratios, which come from the same run. All parts but
`larger` run by default. --check compares figures with the goals of benchmarks/goals.py.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.corpora import BUILD
from benchmarks.goals import checked
from benchmarks.report import console, machine, previous_figures, save, show
from pgoutput_etl.spark.options import split

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.larger import LargerMachine


@dataclass(frozen=True, slots=True)
class Options:
    """only: the scenarios or growth series to run; all if empty. json: the file for figures; drawings go next to it.
    larger: the machine of that part."""

    scale: float
    runs: int
    only: tuple[str, ...]
    json: Path
    larger: LargerMachine


Progress = Callable[[str], None]


def decoding(options: Options, progress: Progress) -> dict[str, Any]:
    from benchmarks.decoding import measure_decoding

    results = measure_decoding(options.scale, options.runs, progress)
    results["figures"] = [asdict(figure) for figure in results["figures"]]
    show(f"Decoding {results['messages']:,} messages on one core", results["figures"])
    show("Throughput to typed columns, as a multiple of other decoders'", results["ratios"])
    for line in results["left_out"]:
        console().print(line, markup=False)
    return results


def job(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.jobs import compare
    from benchmarks.scenarios import SCENARIOS
    from benchmarks.sessions import WORK, session

    results = []
    for name in options.only or SCENARIOS:
        scenario_progress = partial(_prefixed, progress, name)
        scenario_progress("writing the archive")
        corpus = SCENARIOS[name](options.scale)
        with session() as spark:  # one for each scenario, as each is a night of its own
            results.append(asdict(compare(spark, corpus, WORK / name, options.runs, scenario_progress)))
        _save(options, {"job": results})
    columns = ("scenario", "messages", "bytes", "files", "floor", "append", "job", "ratio", "ratio_to_append")
    show("The job against Delta's MERGE alone, seconds", [{key: row[key] for key in columns} for row in results])
    stages = dict.fromkeys(stage for row in results for stage in row["stages"])
    stage_rows = [
        {"scenario": row["scenario"], **{stage: row["stages"].get(stage) for stage in stages}} for row in results
    ]
    show("Seconds in each stage of the job", stage_rows)
    return results


def typing(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.scenarios import SCENARIOS
    from benchmarks.typed_events import measure_typing

    names = options.only or ("wide", "pgbench", "streamed")
    rows = [asdict(measure_typing(SCENARIOS[name](options.scale), options.runs, progress)) for name in names]
    show("Landed bytes to typed change events in Spark", rows)
    return rows


def baselines(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.baselines import measure_baselines
    from benchmarks.scenarios import SCENARIOS

    rows = [asdict(way) for way in measure_baselines(SCENARIOS["pgbench"](options.scale), options.runs, progress)]
    show("The same night by other means", rows)
    return rows


def _prefixed(progress: Progress, name: str, step: str) -> None:
    progress(f"{name}: {step}")


def nights(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.nights import measure_nights

    costs = [asdict(cost) for cost in measure_nights(options.scale, progress)]
    show("The driver's seconds per night, as state accumulates", costs)
    return costs


def merge(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.merge_settings import measure_merge_settings

    costs = [asdict(cost) for cost in measure_merge_settings(options.scale, options.runs, progress)]
    show("Settings of MERGE, each against the first of its kind", costs)
    return costs


def growth(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.drawing import draw
    from benchmarks.growth import UNITS, Point, measure_growth

    figures = previous_figures(options.json, "growth", options.scale) if options.only else []
    earlier = [Point(**point) for point in figures]
    points = measure_growth(options.scale, options.runs, progress, options.only or UNITS, earlier)
    drawing = options.json.with_name("growth.svg")
    draw(points, drawing)
    rows = [asdict(point) for point in points]
    show("Growth of the job's time", rows)
    console().print(f"Drawing: {drawing}", markup=False)
    return rows


def memory(options: Options, progress: Progress) -> dict[str, Any]:
    from benchmarks.memory import measure_memory

    peaks, slope = measure_memory(options.scale, progress)
    rows = [asdict(peak) for peak in peaks]
    show("Peak memory, MB", rows)
    console().print(f"A Python worker holds {slope:.1f} bytes more for each byte of its file.", markup=False)
    return {"held": rows, "worker_bytes_per_byte_of_file": slope}


def heap(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.heap import measure_heap

    rows = [asdict(least) for least in measure_heap(options.scale, progress)]
    show("The smallest heap for a file", rows)
    return rows


def known(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.known_files import measure_known_files

    costs = [asdict(cost) for cost in measure_known_files(options.scale, options.runs, progress)]
    show("The cost of known files in a run with one new file", costs)
    return costs


def small(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.small_nights import measure_small_nights

    nights = [asdict(night) for night in measure_small_nights(options.runs, progress)]
    show("Nights of a few rows", nights)
    return nights


def cold(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.cold import measure_cold

    commands = [asdict(command) for command in measure_cold(options.runs, progress)]
    show("Commands with their start", commands)
    return commands


def whole(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.whole_tables import measure_whole_tables

    rows = [asdict(command) for command in measure_whole_tables(options.scale, options.runs, progress)]
    show("Jobs that read whole tables, with their start", rows)
    return rows


def late(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.late_storage import measure_late_storage

    nights = measure_late_storage(options.scale, options.runs, progress)
    show("Nights on S3 that answers late", nights)
    return nights


def work(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.work import WORKERS

    nights = _counted(options, options.only, WORKERS, progress)
    show("The work of nights on a cluster of one-core workers", nights)
    return nights


def _counted(
    options: Options, only: Collection[str], workers: Sequence[int], progress: Progress
) -> list[dict[str, Any]]:
    from benchmarks.work import measure_work

    nights: list[dict[str, Any]] = []
    for measured in measure_work(options.scale, options.runs, only, progress, workers):
        nights = [asdict(night) for night in measured]
        _save(options, {"work": nights})
    return nights


def sizes(options: Options, progress: Progress) -> list[dict[str, Any]]:
    from benchmarks.sizes import measure_sizes

    nights = [asdict(night) for night in measure_sizes(options.scale, options.only, progress)]
    show(
        "One night of each size",
        [{name: value for name, value in night.items() if name != "stages"} for night in nights],
    )
    return nights


def larger(options: Options, progress: Progress) -> dict[str, Any]:
    """With --only, the file's other figures stay, if they are of the same machine."""
    from benchmarks.larger import UnsuitableMachineError, compared, described, measure_scenario
    from benchmarks.scenarios import SCENARIOS

    names = options.only or tuple(SCENARIOS)
    if unknown := set(names) - set(SCENARIOS):
        sys.exit(f"larger: expected scenarios of {', '.join(SCENARIOS)}, found {', '.join(sorted(unknown))}")
    progress("checking cores and storage")
    try:
        described_machine = described(options.larger)
    except UnsuitableMachineError as error:
        sys.exit(f"larger: {error}")
    found: dict[str, Any] = previous_figures(options.json, "larger", options.scale) if options.only else {}
    keeps = bool(found) and found["machine"] == described_machine
    rows = {row["scenario"]: row for row in found["scenarios"]} if keeps else {}
    counted = _counted_for(names, options, keeps, progress)
    for name in names:
        run = measure_scenario(name, options.larger, options.scale, options.runs, partial(_prefixed, progress, name))
        rows[name] = compared(run, counted, options.larger.cores)
        found = {"machine": described_machine, "scenarios": [*rows.values()]}
        _save(options, {"larger": found})
    shown = [{key: value for key, value in row.items() if key != "stages"} for row in rows.values()]
    show("Scenarios, and the model's most seconds", shown)
    if failed := [name for name in names if rows[name]["failed"]]:
        sys.exit(f"larger: {', '.join(failed)} failed, see above; to repeat: --only {' --only '.join(failed)}")
    return found


def _counted_for(names: Sequence[str], options: Options, keeps: bool, progress: Progress) -> list[dict[str, Any]]:
    """The nights from which the model predicts the scenarios; fewer if counting fails. keeps: those of the file."""
    from benchmarks.larger import nights_to_count

    needed = nights_to_count(names)
    counted: list[dict[str, Any]] = previous_figures(options.json, "work", options.scale) if keeps else []
    if not needed <= {night["night"] for night in counted}:
        try:
            counted = _counted(options, needed, (2,), progress)
        except Exception:  # noqa: BLE001 # scenarios can be measured without a prediction
            traceback.print_exc()
    return [night for night in counted if night["workers"] == 2]


PARTS: dict[str, Callable[[Options, Progress], Any]] = {
    "decoding": decoding,
    "typing": typing,
    "job": job,
    "baselines": baselines,
    "small": small,
    "cold": cold,
    "whole": whole,
    "late": late,
    "merge": merge,
    "nights": nights,
    "growth": growth,
    "memory": memory,
    "heap": heap,
    "known": known,
    "work": work,
    "sizes": sizes,
    "larger": larger,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all but larger)")
    parser.add_argument("--scale", type=float, default=1.0, help="size of every archive; reported figures have 1")
    parser.add_argument("--runs", type=int, default=3, help="runs per figure; the median is reported")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="a scenario of the job, or a growth series: tables, files, bytes; may be repeated",
    )
    parser.add_argument("--json", type=Path, default=BUILD / "bench.json", metavar="FILE", help="the file for figures")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a figure is beyond its goal")
    _add_options_of_larger(parser)
    try:
        spark, own = split(sys.argv[1:])
    except ValueError as error:
        parser.error(str(error))
    arguments = parser.parse_args(own)
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"expected parts of {', '.join(PARTS)}, found {', '.join(sorted(unknown))}")
    if (spark or arguments.cores or arguments.memory or arguments.storage) and "larger" not in arguments.parts:
        parser.error("--cores, --memory, --storage, and Spark's options are of the part larger")
    options = _options(arguments, spark)
    found: dict[str, Any] = {}
    for part in arguments.parts or [name for name in PARTS if name != "larger"]:
        with _progress(part) as progress:
            found[part] = PARTS[part](options, progress)
        _save(options, {part: found[part]})
    return _check(found) if arguments.check else 0


def _add_options_of_larger(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("larger", "with the options of spark-submit, such as --master and --conf")
    group.add_argument("--cores", type=int, help="of Spark, and of the model (default: all of this machine)")
    group.add_argument("--memory", help="of the driver's JVM, such as 32g (default: 2 GB for each core)")
    group.add_argument("--storage", metavar="URL", help="a folder for landing and tables (default: on this disk)")


def _options(arguments: argparse.Namespace, spark: Sequence[str]) -> Options:
    from benchmarks.larger import LargerMachine

    cores = arguments.cores or machine()["cores"]
    larger_machine = LargerMachine(cores, arguments.memory or f"{2 * cores}g", arguments.storage, tuple(spark))
    return Options(arguments.scale, arguments.runs, tuple(arguments.only), arguments.json, larger_machine)


def _check(results: dict[str, Any]) -> int:
    """The exit code: 1 if a figure is beyond its goal, 2 if none of these parts has a goal."""
    rows = [*checked(results)]
    if not rows:
        console(stderr=True).print("expected a part with goals (benchmarks/goals.py), found none", markup=False)
        return 2
    show("Goals, on two quiet cores at scale 1", map(asdict, rows))
    return 0 if all(row.reached for row in rows) else 1


def _save(options: Options, parts: dict[str, Any]) -> None:
    conditions = {"scale": options.scale, "runs": options.runs, **machine()}
    save(options.json, {part: {**conditions, "found": results} for part, results in parts.items()})


@contextmanager
def _progress(part: str) -> Iterator[Progress]:
    err = console(stderr=True)
    if not err.is_terminal:
        yield lambda step: err.print(f"{part}: {step}", markup=False)
        return
    with err.status(part) as status:
        yield lambda step: status.update(f"{part}: {step}")


if __name__ == "__main__":
    sys.exit(main())

"""Runs the simulation: `make simulate SEEDS=100000`; one seed with its trace: python -m tests.simulation --seed 7."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import fields
from multiprocessing import get_context

from tests.simulation.runner import Tally, prepare_process, run_seed, run_seeds, shrink, trace_digest

_AT_ONCE = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default: 10000)")
    parser.add_argument("--first", type=int, default=0, help="the first one (default: 0)")
    parser.add_argument("--seed", type=int, help="only this one, with its trace")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--trace-digest", action="store_true", help="one hash of the seeds' traces")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _explain(arguments.seed)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    if arguments.trace_digest:
        print(_digest(seeds, arguments.processes))
        return 0
    started = time.monotonic()
    tally = _run(seeds, arguments.processes)
    seconds = time.monotonic() - started
    if arguments.json:
        result = {field.name: getattr(tally, field.name) for field in fields(tally)}
        print(json.dumps({**result, "seconds": round(seconds, 1)}))
    else:
        _print(tally, seconds)
    for seed in sorted(tally.failures)[:3]:
        print(file=sys.stderr)
        _explain(seed)
    return 1 if tally.failures or tally.seeds < arguments.seeds else 0


def _run(seeds: range, processes: int) -> Tally:
    """Of those seeds that are done when it is interrupted."""
    tally = Tally()
    parts = [seeds[at : at + _AT_ONCE] for at in range(0, len(seeds), _AT_ONCE)]
    pool = ProcessPoolExecutor(processes, get_context("spawn"), prepare_process)
    try:
        for done in as_completed([pool.submit(run_seeds, part) for part in parts]):
            tally.merge(done.result())
            print(f"\r{tally.seeds:,} of {len(seeds):,} seeds, {len(tally.failures)} failed", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted: this is the result so far", end="", file=sys.stderr)
    finally:
        pool.shutdown(cancel_futures=True)  # once: leaving a `with` would take the cancellation back
    print(file=sys.stderr)
    return tally


def _digest(seeds: range, processes: int) -> str:
    """Equal for two versions of the package whose runs do the same things to storage in every seed."""
    with ProcessPoolExecutor(processes, get_context("spawn"), prepare_process) as pool:
        digests = pool.map(trace_digest, seeds, chunksize=10)
        return hashlib.sha256("".join(digests).encode()).hexdigest()


def _print(tally: Tally, seconds: float) -> None:
    print(f"{tally.seeds:,} seeds in {seconds:,.0f} s: {tally.batches:,} batches, {tally.effects:,} effects on storage")
    _print_counts("faults", tally.faults)
    _print_counts("runs", tally.ends)
    print(f"broken promises: {len(tally.failures)}")
    for seed, failure in sorted(tally.failures.items())[:20]:
        print(f"  seed {seed}: {failure}")


def _print_counts(title: str, counts: Counter[str]) -> None:
    print(f"{title}: {', '.join(f'{count:,} {name}' for name, count in counts.most_common())}")


def _explain(seed: int) -> int:
    """Prints the trace of a seed, with only those faults that a broken promise needs."""
    _, failure = run_seed(seed)
    allowed = None if failure is None else shrink(seed)
    world, failure = run_seed(seed, allowed, keeps_trace=True)
    print(f"seed {seed}: {failure or 'every promise was kept'}", world.scenario, *world.scheduler.trace, sep="\n")
    if allowed is not None:
        print(f"faults that it needs: {sorted(allowed) or 'none'}")
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())

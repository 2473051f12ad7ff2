"""Runs seeds, and makes a failing one smaller."""

from __future__ import annotations

import gc
import hashlib
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from unittest.mock import _patch

from tests.simulation.mutations import MUTATIONS
from tests.simulation.world import Scenario, World


@dataclass(slots=True)
class Tally:
    """What happened in many seeds. ends: of runs, by result. failures: the broken promise by seed."""

    seeds: int = 0
    batches: int = 0
    effects: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, world: World, failure: str | None) -> None:
        self.seeds += 1
        self.batches += world.promises.done
        self.effects += world.storage.effects
        self.faults.update(kind for _, kind in world.storage.faults.happened)
        self.ends.update(_kind_of(result) for result in world.results.values())
        if failure is not None:
            self.failures[world.scenario.seed] = failure

    def merge(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.batches += other.batches
        self.effects += other.effects
        self.faults += other.faults
        self.ends += other.ends
        self.failures |= other.failures


def _kind_of(result: str) -> str:
    """done, killed, the name of an error, or a run that stopped because of another one."""
    if "another run" in result:
        return "stopped for another run"
    return re.split(r"[:\s]", result, maxsplit=1)[0]


def run_seed(
    seed: int, allowed: frozenset[int] | None = None, keeps_trace: bool = False, mutation: str | None = None
) -> tuple[World, str | None]:
    """The world at its end, and the broken promise, if any. allowed: numbers of the only faults that happen."""
    world = World(Scenario.of(seed), allowed, keeps_trace)
    with planted(mutation):
        try:
            world.run()
        except Exception as error:  # noqa: BLE001  # any other error is a broken promise, too
            return world, f"{type(error).__name__}: {error}".partition("\n")[0]
    return world, None


@contextmanager
def planted(mutation: str | None) -> Iterator[None]:
    found = () if mutation is None else MUTATIONS[mutation]()
    with ExitStack() as stack:
        for patch in (found,) if isinstance(found, _patch) else found:
            stack.enter_context(patch)
        yield


def prepare_process() -> None:
    """For a process of a pool; not in __main__, which such a process does not import. Leaves interrupts to the main
    process. Python looks for garbage less often: 5 % of the time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(50_000)


def run_seeds(seeds: Iterable[int]) -> Tally:
    tally = Tally()
    for seed in seeds:
        tally.add(*run_seed(seed))
    return tally


def trace_digest(seed: int) -> str:
    """A hash of everything that happens in the seed."""
    world, failure = run_seed(seed, keeps_trace=True)
    return hashlib.sha256("\n".join([*world.scheduler.trace, str(failure)]).encode()).hexdigest()


def shrink(seed: int, mutation: str | None = None) -> frozenset[int]:
    """Few faults with which the seed still breaks a promise: without each half, quarter, … that is not needed."""
    world, failure = run_seed(seed, mutation=mutation)
    assert failure is not None
    needed = frozenset(number for number, _ in world.storage.faults.happened)
    smaller: frozenset[int] | None = needed
    while smaller is not None:
        needed = smaller
        candidates = (fewer for fewer in _without_parts(needed) if run_seed(seed, fewer, mutation=mutation)[1])
        smaller = next(candidates, None)
    return needed


def _without_parts(numbers: frozenset[int]) -> Iterator[frozenset[int]]:
    in_order = sorted(numbers)
    size = (len(in_order) + 1) // 2
    while size:
        for begin in range(0, len(in_order), size):
            yield frozenset(in_order[:begin] + in_order[begin + size :])
        size //= 2


def first_seed_that_finds(mutation: str, seeds: Iterable[int]) -> int | None:
    return next((seed for seed in seeds if run_seed(seed, mutation=mutation)[1] is not None), None)

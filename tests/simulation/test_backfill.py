"""Backfills in the simulation: cases that it found, each on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.work.backfill import run as backfill
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.simulation.jobs import Jobs
from tests.simulation.landing import CURRENT, compressed
from tests.simulation.promises import BrokenPromiseError, Holders
from tests.simulation.runner import planted
from tests.simulation.scheduler import Scheduler, SimProcess
from tests.simulation.storage import Chances
from tests.simulation.world import Scenario, World

READ, RENAMED = "landing/w-0001.bin", "landing/w-0001.bin.renamed"


def rebuild(jobs: Jobs) -> str:
    return jobs.backfill(BackfillRequest(("*",)))


def quiet_world(renames: bool = False) -> World:
    quiet = replace(Scenario.of(0), tears=0.0, max_transactions=None, chances=Chances(switch=0.0))
    return World(replace(quiet, archive=242, renames=renames))


@pytest.fixture
def world() -> World:
    """With all files read."""
    world = quiet_world()
    while not world.receiver.is_done:
        world.receiver.grow(5)
    assert world.run_alone().startswith("done")
    return world


def rename(world: World, path: str = RENAMED) -> None:
    world.folder.put(path, world.folder.contents[READ])
    world.folder.remove(READ)


def compress_beside_a_run(world: World) -> None:
    """A run sees the compressed copy while the file itself is still there."""
    world.folder.put(f"{READ}.gz", compressed(world.folder.contents[READ]))
    assert world.run_alone().startswith("done")
    world.folder.remove(READ)
    assert world.run_alone().startswith("done")


@pytest.mark.parametrize("move", [rename, compress_beside_a_run])
def test_files_are_found_that_were_renamed_or_compressed_since_they_were_read(
    world: World, move: Callable[[World], None]
) -> None:
    move(world)
    assert world.run_alone(rebuild) == f"done: backfill {world.promises.done}"


def test_a_file_that_was_renamed_does_not_keep_a_run_from_finishing_a_backfill(world: World) -> None:
    done = world.promises.done
    process = world.start(Random(0), rebuild)
    while not world.promises.is_interrupted:
        assert world.scheduler.step(world.scheduler.now + 600)
        world.promises.after_step()
    world.scheduler.kill(process)
    rename(world)
    world.scheduler.now += 1000
    assert world.run_alone().startswith("done")
    assert (world.promises.done, world.promises.is_interrupted) == (done + 2, False), "one records the new name"


@pytest.mark.parametrize("mutation", [None, "a backfill does not look at the ledger once it has the claim"])
def test_a_backfill_stops_if_another_run_has_finished_a_batch_since_it_read_the_ledger(
    mutation: str | None,
) -> None:
    """No seed up to 10,000 stops a backfill there for so long."""
    world = quiet_world()
    world.receiver.grow(10)
    assert world.run_alone() == "done: 1"
    with planted(mutation):
        run = vars(backfill)["run"]  # with the planted fault

        def late(ledger: Ledger, *arguments: Any) -> Any:
            ledger.machine.event().wait(5000)
            return run(ledger, *arguments)

        with patch.object(backfill, "run", late):
            process = world.start(Random(0), rebuild)
            world._go_on(world.scheduler.now + 1000, Random(0))
            while not world.receiver.is_done:
                world.receiver.grow(5)
            other = world.start(Random(0), Jobs.apply)
            world._go_on(world.scheduler.now + 1000, Random(0))
            assert world.results == {"run 0 on b": "done: 1", other.name: "done: 2"}
            if mutation is not None:
                with pytest.raises(BrokenPromiseError, match="batch 3: LSN"):
                    world._go_on(world.scheduler.now + 1e6, Random(0))
            else:
                world._go_on(world.scheduler.now + 1e6, Random(0))
                assert "another run" in world.results[process.name]


def test_a_redrive_follows_a_file_whose_name_the_receiver_uses_for_the_next_one() -> None:
    """It took the next file for the first one, whose commits then came too late (seed 381)."""
    world = World(
        replace(
            Scenario.of(0), archive=242, renames=True, tears=0.0, max_transactions=None, chances=Chances(switch=0.0)
        )
    )
    world.receiver.grow(5)
    assert world.run_alone() == "done: 1"
    world.receiver.rotate()
    assert {*world.folder.contents} == {CURRENT, READ}
    assert world.run_alone(Jobs.redrive) == "done: redrive 2"
    world._come_to_rest()


def test_tables_of_an_older_snapshot_get_the_commits_after_it() -> None:
    """Before the first file was read, they were said to have those up to a newer snapshot, too (seed 3743)."""
    world = World(replace(quiet_world().scenario, archive=18))
    older, newer = (world.archive.snapshot(count) for count in (12, len(world.archive.frames)))
    assert older is not None
    assert newer is not None
    assert older.lsn < newer.lsn
    for number, server in enumerate((newer, older), 1):
        assert world.run_alone(partial(Jobs.snapshot, server=server)) == f"done: snapshot {number}"
    world._come_to_rest()


def test_a_file_that_is_gone_is_named(world: World) -> None:
    world.folder.remove(READ)
    assert world.run_alone(rebuild).startswith(f"ArchiveError: {READ} no longer exists")


@pytest.mark.parametrize(("slack", "is_broken"), [(0.0, True), (100.0, False)])
def test_two_runs_that_may_write_at_the_same_time_break_a_promise(world: World, slack: float, is_broken: bool) -> None:
    holders = Holders(Scheduler(Random(0)), slack)
    first, second = (named_process(world, name) for name in ("first", "second"))
    holders.since = {first: holders.scheduler.now - 100, second: holders.scheduler.now - 50}
    holders._refuse_second(second, holders.scheduler.now)
    if is_broken:
        with pytest.raises(BrokenPromiseError, match="first may write 50 s after second has taken over"):
            holders._refuse_second(first, holders.scheduler.now)
    else:
        holders._refuse_second(first, holders.scheduler.now)


def named_process(world: World, name: str) -> SimProcess:
    process = world.new_process(Random(0))
    process.name = name
    return process

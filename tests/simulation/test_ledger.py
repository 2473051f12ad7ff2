"""The ledger on simulated storage: cases that the simulation found, each on its own."""

from __future__ import annotations

import random
from dataclasses import replace

from pgoutput_etl.ledger.batch import Batch
from tests.simulation.ledger import SimStore, sim_ledger
from tests.simulation.scheduler import SimMachine
from tests.simulation.storage import Chances
from tests.simulation.world import Scenario, World


def test_a_runs_leftovers_are_deleted_and_the_rows_of_a_later_batch_stay() -> None:
    """The run was believed dead, went on, and has begun the next batch."""
    world = World(replace(Scenario.of(0), chances=Chances(switch=0.0)))
    machine = SimMachine(world.scheduler, world.new_process(random.Random(0)), world.processes)
    store = SimStore(world.storage, machine)
    for batch, file in ((1, 3), (2, 5)):
        store.append_rows("open_transactions", [{"file": file, "unit": 1}], batch)
    done = Batch("ledger", 1, {}, False, None, {}, 0)
    sim_ledger(world.storage, machine).delete_ended(done)
    assert [(row["batch"], row["file"]) for row in world.promises.rows("open_transactions")] == [(2, 5)]

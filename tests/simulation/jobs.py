"""The package's jobs, and a reader, in a simulated process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import CatalogKey, Config, Merge, Source, State, Target
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.as_of import batch_at, tables_in
from pgoutput_etl.ledger.batch import applied
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.masking.policy import masking_policy
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.backfill.run import backfill_tables
from pgoutput_etl.work.batch import Watch, World, run
from pgoutput_etl.work.erasure.erase import erase, last_to_erase
from pgoutput_etl.work.erasure.request import Erasure
from pgoutput_etl.work.files.pipeline import apply_run
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder
from pgoutput_etl.work.kinds.redrive import Redrive
from pgoutput_etl.work.kinds.snapshot_load import with_snapshot
from pgoutput_etl.work.kinds.snapshot_order import SnapshotOrder
from pgoutput_etl.work.snapshot.run import NO_BATCH, finish_pending, load_staged
from pgoutput_etl.work.snapshot.staging import StagedTables
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain_tables
from tests.simulation.archive import SimArchive
from tests.simulation.archives import ServerSnapshot
from tests.simulation.erasure import SimErasure
from tests.simulation.landing import Folder, SimLandingFolder
from tests.simulation.ledger import ROOT, SOURCE, SimStore, sim_ledger
from tests.simulation.promises import Holders, Promises
from tests.simulation.scheduler import SimMachine, SimProcess
from tests.simulation.storage import FilesRemovedError, Storage, Writer
from tests.simulation.targets import SimTargets
from tests.simulation.upkeep import SimUpkeep
from tests.support.catalog_messages import KEY
from tests.support.model.wal import FIRST_LSN

REDRIVE = BackfillOrder((), None, None, None, anew=True)


def config_of(rules: Sequence[TableRule], max_transactions: int | None) -> Config:
    merge = Merge(max_transactions=max_transactions)
    source = Source(SOURCE, "landing", catalog_key=CatalogKey(KEY))
    return Config(source, Target("root"), State(ROOT), merge=merge, tables=tuple(rules))


@dataclass(slots=True)
class Jobs:
    """Of one process. Each returns its result in a word."""

    config: Config
    storage: Storage
    folder: Folder
    machine: SimMachine
    holders: Holders
    promises: Promises
    ledger: Ledger

    @classmethod
    def of(cls, config: Config, folder: Folder, machine: SimMachine, holders: Holders, promises: Promises) -> Jobs:
        ledger = sim_ledger(promises.storage, machine, partial(holders.watched, machine.own))
        return cls(config, promises.storage, folder, machine, holders, promises, ledger)

    @property
    def process(self) -> SimProcess:
        return self.machine.own

    @property
    def landing(self) -> SimLandingFolder:
        return SimLandingFolder(self.config, self.folder, self.storage, self.process)

    @property
    def targets(self) -> SimTargets:
        return SimTargets(Writer(self.storage, self.process), self.machine)

    def says(self, text: str) -> None:
        self.promises.check_secrecy("progress", text)

    @property
    def world(self) -> World:
        def repair_changes(*_: Any) -> Any:
            raise AssertionError("no repairs in this simulation")

        background = partial(self.machine.pool, 2)
        archive_of = partial(SimArchive, self.config, self.ledger, landing=self.landing)
        return World(self.config, self.ledger, self.landing, self.targets, background, archive_of, repair_changes)

    def apply(self) -> str:
        return ", ".join(str(summary.batch) for summary in apply_run(self.world, Watch(self.says)))

    def backfill(self, request: BackfillRequest) -> str:
        return f"backfill {backfill_tables(self.world, request, self.says).batch}"

    def redrive(self) -> str:
        """Assembles the whole archive again, whether or not a table is held."""
        world = self.world
        last = applied(self.ledger.batches.last(), SOURCE)
        if last.resumed:
            raise RunError("finish the batch first")
        work = Redrive(world.archive_of(last), self.targets, REDRIVE, self.says)
        return f"redrive {run(self.ledger, work, last, Watch(self.says)).batch}"

    def snapshot(self, server: ServerSnapshot | None) -> str:
        """Loads the server's tables."""
        if server is None:
            return "snapshot of nothing"
        world, storage = self.world, self.storage
        finish_pending(world, self.says)
        last = self.ledger.batches.last()
        path = f"{ROOT}/staged/{self.process.name}"

        def stage(archive: LedgerArchive) -> StagedTables:
            types = UserTypes.of({**archive.assembly.types, **{t.oid: t for t in server.types}}.values(), {})
            policy = masking_policy(self.config, with_snapshot(archive.relations, server.relations), types, {})
            content = server.content(policy)
            storage.write(self.process, f"stage {path}", partial(storage.staged.__setitem__, path, content))
            return StagedTables(SnapshotOrder(server.lsn, None, path, server.relations, server.types), (), ())

        archive = world.archive_of(applied(last, SOURCE) if last is not None else NO_BATCH)
        return f"snapshot {load_staged(world, archive, stage(archive), stage, self.says)[0].batch}"

    def forget(self, erasure: Erasure) -> str:
        """Erases what has landed, or finishes the erasure."""
        if not self.promises.is_erasing:
            self.apply()
        last = last_to_erase(self.ledger, may_finish=True)
        archive = self.world.archive_of(last)
        assert isinstance(archive, SimArchive)
        return f"forget {erase(SimErasure(archive, self.targets), erasure, True, self.says).batch}"

    def some_backfill(self, chance: Random, last_lsn: int) -> str:
        """Of all tables, whole or within a range of commits."""
        limits = [chance.randrange(FIRST_LSN, last_lsn + 2) for _ in range(2)] if last_lsn >= FIRST_LSN else [0, 0]
        first, last = chance.choice(((None, None), (min(limits), max(limits)), (max(limits), None)))
        return self.backfill(BackfillRequest(("*",), first, last))

    def maintain(self) -> str:
        upkeep = SimUpkeep(SimStore(self.storage, self.machine), self.machine)
        request = MaintainRequest(execute=True, ledger_keep_days=1)
        return f"maintain {maintain_tables(upkeep, self.ledger, request, self.says).batch}"

    def read(self) -> str:
        """All tables as of the last finished batch, while other processes work."""
        store = SimStore(self.storage, self.machine)
        rows = store.rows("batches", ("batch", "status", "last_commit_lsn", "tables"))
        done = {row["batch"]: row for row in rows if row["status"] == "done"}
        try:
            batch = batch_at({number: row["last_commit_lsn"] for number, row in done.items()}, SOURCE)
        except RunError:
            return "read 0"
        for name, state in tables_in(done[batch]["tables"], ROOT):
            path, version = state["path"], state["version"]
            if version >= 0:
                read = partial(self.storage.table(path).read, version)
                try:
                    content = self.storage.read(self.process, f"read {path} {version}", read)
                except FilesRemovedError:
                    if self.promises.erasures:  # a reader must start anew
                        return "read of erased versions"
                    raise
                self.promises.check_read(f"reader of {name} as of batch {batch}", state, batch, content)
        return f"read {batch}"

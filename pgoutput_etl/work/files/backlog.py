"""The landing folder and the ledger at the start of a run of `apply` or `plan`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgoutput_etl.console import Progress
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.claims import Claim
from pgoutput_etl.work.batch import World


@dataclass(frozen=True, slots=True)
class Backlog:
    """last: the interrupted batch, or the last finished one. claim: the newest claim, or None to read it again."""

    last: Batch | None
    claim: Claim | None
    listing: Listing
    index: FileIndex

    @property
    def interrupted(self) -> Batch | None:
        return self.last if self.last is not None and self.last.resumed else None

    def after(self, last: Batch) -> Backlog:
        """The same backlog after a batch was closed."""
        return replace(self, last=last, claim=None)


def find_backlog(world: World, progress: Progress) -> Backlog:
    """Lists the landing folder while the ledger is read. Raises RunError if another run is active, even if there is
    nothing to do."""
    progress(f"looking for new files in {world.config.source.landing}")
    with world.machine.pool(2) as pool:
        listing = pool.submit(world.landing.listing)
        last = world.ledger.batches.last()
        index = pool.submit(world.ledger.files.index, last)
        claim = world.ledger.batches.claims().refuse_others(Batch.next(last).number, progress)
    return Backlog(last, claim, listing.result(), index.result())

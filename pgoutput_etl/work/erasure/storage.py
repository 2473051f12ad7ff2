"""Everything besides landed files that an erasure searches and changes: the interface, and its implementation with
Spark and Delta tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from pgoutput_etl.answers.verify.server_answer import answer_file
from pgoutput_etl.changes.row_search import RowSearch
from pgoutput_etl.console import Progress
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.load.targets import DeltaTargets
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.targets.location import scratch_folder
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.work.erasure import purge
from pgoutput_etl.work.erasure.find import FoundChanges, find_changes, find_messages
from pgoutput_etl.work.erasure.ledger_rows import COPIED, LedgerCopies
from pgoutput_etl.work.erasure.pending import PendingErasures
from pgoutput_etl.work.erasure.remains import remains
from pgoutput_etl.work.erasure.request import MessageErasure, SnapshotErasure
from pgoutput_etl.work.erasure.snapshot_files import SnapshotFiles
from pgoutput_etl.work.erasure.stored_files import SparkFiles, StoredFiles
from pgoutput_etl.work.erasure.targets import TargetSearch


class ErasedTarget(Protocol):
    """The rows to erase in a target: those that meet a condition."""

    @property
    def state(self) -> TableState: ...

    def other_keys(self) -> Any:
        """Other keys of these rows, for ErasureStorage.find_changes."""

    def count(self) -> int: ...

    def has_any(self) -> bool: ...

    def delete(self, commit: DeltaTransaction) -> int:
        """Returns the number of deleted rows. Makes at most one Delta commit."""


class ErasedCopies(Protocol):
    """The ledger's rows with copies of changes and Messages."""

    def count(self) -> int: ...

    def erase(self) -> int:
        """Returns the number of rows that had copies."""


class ErasureStorage(Protocol):
    @property
    def archive(self) -> LedgerArchive: ...

    @property
    def files(self) -> StoredFiles: ...

    @property
    def pending(self) -> PendingErasures: ...

    def others_claimed(self, progress: Progress) -> AbstractContextManager[None]:
        """Claims the next batch of every other source in this ledger: their runs write to the ledger's tables, from
        which files are about to be removed."""

    def find_changes(self, searches: Mapping[int, RowSearch], stored: Iterable[Any]) -> FoundChanges:
        """searches: by OID. stored: other keys of targets. Raises ArchiveError if a file is missing or has changed."""

    def find_messages(self, is_chosen: Callable[[Message], bool]) -> list[dict[str, Any]]:
        """The rows of logical decoding Messages."""

    def snapshot_files(self, searches: Mapping[int, RowSearch], wanted: SnapshotErasure) -> SnapshotFiles: ...

    def exists(self, place: Place) -> bool: ...

    def target(self, state: TableState, search: RowSearch) -> ErasedTarget:
        """Raises TableError if the rows can't be identified."""

    def copies(self, since: int, positions: pa.Table, messages: tuple[MessageErasure, ...]) -> ErasedCopies:
        """See LedgerCopies."""

    def ledger_tables(self) -> list[Place]:
        """The ledger's tables that may contain copies."""

    def refuse_what_stays(self, places: Iterable[Place]) -> None:
        """Raises RunError if a table's older versions can't be removed."""

    def purge(self, place: Place, commit: DeltaTransaction) -> int:
        """Removes all but the newest version of a table, and returns its number."""

    def older_files(self, place: Place) -> int:
        """The number of files of older versions that `purge` left because of their timestamps."""

    def newest_version(self, place: Place) -> int: ...

    def count(self, place: Place) -> int: ...

    def discard_scratch(self) -> None:
        """Deletes leftovers of rebuilds that died, and the rows that verify keeps until they are settled."""

    def pool(self, verb: str, progress: Progress) -> TablePool: ...

    def remains(self, oids: Collection[int], rewritten: Sequence[str]) -> Iterable[str]:
        """Data that can't be erased. oids: tables with erased rows. rewritten: paths of landed files."""


@dataclass(frozen=True, slots=True)
class SparkStorage:
    archive: DeltaArchive

    @property
    def files(self) -> SparkFiles:
        return SparkFiles(self.archive)

    @property
    def pending(self) -> PendingErasures:
        return PendingErasures.of(self.archive.ledger)

    @contextmanager
    def others_claimed(self, progress: Progress) -> Iterator[None]:
        ledger = self.archive.ledger
        with ExitStack() as stack:
            batches = ledger.spark.read.format("delta").load(ledger.store.path("batches"))
            sources = {row["source"] for row in batches.select("source").distinct().collect()}
            for source in sorted(sources - {ledger.source}):
                other = DeltaLedger.at(ledger.spark, ledger.root, source, access=ledger.access)
                theirs = other.batches.last()
                assert theirs is not None
                stack.enter_context(other.batches.claimed(theirs, Batch.next(theirs), progress))
            yield

    def find_changes(self, searches: Mapping[int, RowSearch], stored: Iterable[Any]) -> FoundChanges:
        return find_changes(self.archive, searches, stored)

    def find_messages(self, is_chosen: Callable[[Message], bool]) -> list[dict[str, Any]]:
        return find_messages(self.archive, is_chosen)

    def snapshot_files(self, searches: Mapping[int, RowSearch], wanted: SnapshotErasure) -> SnapshotFiles:
        return SnapshotFiles.of(self.archive, searches, wanted)

    def exists(self, place: Place) -> bool:
        return is_delta_table(self.archive.spark, place)

    def target(self, state: TableState, search: RowSearch) -> TargetSearch:
        return TargetSearch.of(self.archive, state, search)

    def copies(self, since: int, positions: pa.Table, messages: tuple[MessageErasure, ...]) -> LedgerCopies:
        return LedgerCopies(self.archive.ledger, since, positions, messages)

    def ledger_tables(self) -> list[Place]:
        store = self.archive.ledger.store
        return [Place(store.path(table)) for table in COPIED if store.exists(table)]

    def refuse_what_stays(self, places: Iterable[Place]) -> None:
        purge.refuse_what_stays(self.archive.spark, places)

    def purge(self, place: Place, commit: DeltaTransaction) -> int:
        with session_settings(self.archive.spark, commit.user_metadata()) as session:
            return purge.purge(session, place)

    def older_files(self, place: Place) -> int:
        return purge.older_files(self.archive.spark, place)

    def newest_version(self, place: Place) -> int:
        return purge.newest_version(self.archive.spark, place)

    def count(self, place: Place) -> int:
        return DeltaTargets(self.archive.spark).count(place)

    def discard_scratch(self) -> None:
        ObjectFolder(self.archive.spark, scratch_folder(self.archive.config)).delete_all()
        answer_file(self.archive.spark, self.archive.config).delete()

    def pool(self, verb: str, progress: Progress) -> TablePool:
        return TablePool.of(self.archive.spark, self.archive.config.merge.parallel_tables, verb, progress)

    def remains(self, oids: Collection[int], rewritten: Sequence[str]) -> Iterator[str]:
        return remains(self.archive, oids, rewritten)

"""Earlier batches and the archive that they read, for rereading parts of it.

The ledger records which files have rows of a table. It also records the status of their transactions, which was decided
by assembling the whole archive. So only those files are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.landed_files import find_parts
from pgoutput_etl.ingest.landing_folder import LandingFolder
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.landing.fingerprint import FilePart, LandedFile
from pgoutput_etl.landing.known_files import KnownFiles, is_unchanged
from pgoutput_etl.landing.repaired_files import resembles
from pgoutput_etl.landing.selection import refuse
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import has_masks, masking_policy
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.targets.plan import HELD, TableState
from pgoutput_etl.targets.planner import name_holders
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff
from pgoutput_etl.transactions.outcome import FragmentId, Outcome, TransactionStatus, Watermark
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.transactions.status_lookup import StatusLookup
from pgoutput_etl.types import UserTypes


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file, or part of a file, that was read. path: its last known path; changes: number of change rows by relation
    OID; commits: None if it has none."""

    number: int
    path: str
    part: FilePart
    changes: Mapping[int, int]
    commits: CommitRange | None

    @property
    def size(self) -> int:
        """Stored bytes; if it is the remainder of a file, decompressed bytes."""
        return self.part.consumed - self.part.offset if self.part.offset else self.part.size

    def overlaps(self, commits: CommitRange) -> bool:
        return self.commits is not None and self.commits.first <= commits.last and commits.first <= self.commits.last


@dataclass(frozen=True)
class LedgerArchive(ABC):
    """Everything that was read and assembled through the last finished batch."""

    config: Config
    ledger: Ledger
    last: Batch
    landing: LandingFolder

    @abstractmethod
    def reading(
        self, files: Collection[ReadFile], oids: Iterable[int], commits: CommitRange
    ) -> AbstractContextManager[CommittedBlocks]:
        """The committed changes of these relations in these files. Valid within the context.

        Raises ArchiveError if a file is missing or has changed.
        """

    @abstractmethod
    def assembled(self, rows: MessageRows, without: Collection[int], cutoffs: Mapping[int, Cutoff]) -> CommittedBlocks:
        """The committed changes among rows whose transactions are already assembled. without: OIDs of relations to
        leave out. cutoffs: by table OID; changes at or after a table's cutoff are left out, too."""

    @abstractmethod
    def staged(self, place: str, oids: Collection[int]) -> CommittedBlocks:
        """A snapshot's rows for these tables."""

    @abstractmethod
    def discard(self, place: str) -> None:
        """Removes staged rows."""

    @abstractmethod
    def waiting(self, fragments: Collection[FragmentId], policy: MaskingPolicy | None) -> DataFrame:
        """Blocks of the rows of open transactions, masked by `policy`. Needed if the ledger has these rows with other
        masks. Raises ArchiveError if a file is missing or has changed."""

    @abstractmethod
    def first_commit(self, time: datetime) -> int:
        """The LSN of the first commit at or after `time`. Raises ConfigError if there is none."""

    @abstractmethod
    def last_commit(self, time: datetime) -> int:
        """The LSN of the last commit at or before `time`. Raises ConfigError if there is none."""

    @abstractmethod
    def commits_of(self, xid: int) -> list[int]:
        """The commit LSNs of the transactions with an xid; several if xids have wrapped around."""

    @abstractmethod
    def _scopes(self) -> dict[FragmentId, int]:
        """The scopes of fragments that have one."""

    @abstractmethod
    def _outcomes(self, files: Collection[int]) -> list[dict[str, Any]]:
        """All fragments in these files whose status the driver decided: file, unit, fate, xid, commit_lsn, commit_ts,
        scope, aborted."""

    @abstractmethod
    def _files_committed_in(self, commits: CommitRange) -> set[int]:
        """The numbers of files with fragments of transactions whose commit, within the range, the driver has seen."""

    @abstractmethod
    def _check_readable(self, state: TableState) -> None:
        """Raises RunError if Delta can no longer read the table's version."""

    @cached_property
    def _next(self) -> Batch:
        """The batch after the last finished one, as if no batch were unfinished."""
        return self.last if self.last.resumed else replace(self.last, number=self.last.number + 1)

    def _files(self, *names: str) -> list[dict[str, Any]]:
        """These columns of the ledger's `files` table."""
        return self.ledger.store.rows_before("files", names, self._next)

    @cached_property
    def _unmasked(self) -> Assembly:
        return self.ledger.history.assembly(self._next, all_scopes=True)

    @cached_property
    def assembly(self) -> Assembly:
        """The assembly after the last finished batch. Its relations are masked as configured, like rows that are read
        again. Raises ConfigError."""
        assembly = self._unmasked
        assembly.relations.mask = self.masking_policy
        return assembly

    @property
    def relations(self) -> RelationHistory:
        return self.assembly.relations

    @cached_property
    def masking_policy(self) -> MaskingPolicy | None:
        """The masks for rows that are read again. Raises ConfigError."""
        if not has_masks(self.config):
            return None
        return masking_policy(self.config, self._unmasked.relations, self.user_types, self._scopes())

    @cached_property
    def user_types(self) -> UserTypes:
        return UserTypes.of(self._unmasked.types.values(), self.config.types)

    @cached_property
    def prior_state(self) -> KnownFiles:
        return self.ledger.files.index(self._next, before=self._next.number).every_file()

    @cached_property
    def last_file(self) -> int:
        """The highest file number; -1 if there are no files."""
        return max((row["file"] for row in self._files("file")), default=-1)

    @cached_property
    def files(self) -> tuple[ReadFile, ...]:
        rows = self._files("file", "changes", "first_commit_lsn", "last_commit_lsn")
        known = self.prior_state
        files = []
        for row in sorted(rows, key=lambda row: row["file"]):
            number, first = row["file"], row["first_commit_lsn"]
            part = known.parts[number]
            if part.was_read:
                commits = None if first is None else CommitRange(first, row["last_commit_lsn"])
                path = known.names[known.roots[number]]
                files.append(ReadFile(number, path, part, dict(row["changes"] or ()), commits))
        return tuple(files)

    @cached_property
    def commits(self) -> CommitRange | None:
        """The range from the first to the last commit in the files; None if there are no commits."""
        rows = self._files("first_commit_lsn", "last_commit_lsn")
        ranges = [(row["first_commit_lsn"], row["last_commit_lsn"]) for row in rows]
        known = [(first, last) for first, last in ranges if first is not None]
        return CommitRange(min(first for first, _ in known), max(last for _, last in known)) if known else None

    def since(self, version: int | None, oids: Iterable[int]) -> dict[int, TableState]:
        """The states from which rebuilds start, by OID: at the given version; otherwise after the table's snapshot, if
        it has one, because the archive then lacks its earlier rows."""
        return self.snapshots(oids) if version is None else {oid: self._base(oid, version) for oid in oids}

    def snapshots(self, oids: Iterable[int]) -> dict[int, TableState]:
        return {o: self._base(o, s.snapshot) for o, s in self._states(oids).items() if s.snapshot is not None}

    def _states(self, oids: Iterable[int]) -> dict[int, TableState]:
        return {oid: self.last.tables[oid] for oid in oids if oid in self.last.tables}

    def _base(self, oid: int, version: int) -> TableState:
        """The table's state at a Delta version. Raises ConfigError if no batch left the table at this version, and
        RunError if Delta can no longer read it."""
        state = self.ledger.batches.state_at(oid, version)
        if state is None or not state.path:
            raise ConfigError(
                f"--since-version: no batch left {self.name(oid)} at Delta version {version}, so the commit through "
                "which it was complete is unknown. The ledger's table `batches` has the versions. A table with a "
                "snapshot that old needs a new one"
            )
        self._check_readable(state)
        return state

    def cutoff_before(self, oids: Iterable[int], lsn: int) -> dict[int, TableState]:
        """The tables that may lack rows up to the commit at `lsn` because of unreadable bytes."""
        if not self.assembly.was_damaged:
            return {}
        return {o: s for o, s in self._states(oids).items() if s.status == HELD and s.last_commit_lsn < lsn}

    def name(self, oid: int) -> str:
        if (state := self.last.tables.get(oid)) is not None:
            return state.full_name
        newest = self.relations.newest(oid)
        return f"OID {oid}" if newest is None else newest.full_name

    @cached_property
    def names(self) -> dict[str, int]:
        """OIDs by "schema.table". A table without committed rows has the name in its newest Relation message."""
        without_rows = sorted(self.relations.oids() - self.last.tables.keys())
        holders = {".".join(name): oid for name, oid in name_holders(self.last.tables, {}).items()}
        return {self.name(oid): oid for oid in without_rows} | holders

    @cached_property
    def roots(self) -> dict[str, str]:
        """By partition, the root under which its rows were sent, both as "schema.table"."""
        return {partition.full_name: root.full_name for partition, root in self.relations.roots().items()}

    def oids_by_name(self, states: Iterable[TableState] = ()) -> dict[str, set[int]]:
        """By "schema.table", the tables that ever had this name. states: further ones to search, from other times."""
        names: dict[str, set[int]] = {}
        relations = [entry.relation for entry in self.relations.entries]
        relations += [state.relation for state in (*states, *self.last.tables.values())]
        for relation in relations:
            names.setdefault(relation.full_name, set()).add(relation.oid)
        return names

    def files_with(self, oids: Iterable[int], commits: CommitRange) -> list[ReadFile]:
        """The files that may have changes of these relations from transactions that committed in the range."""
        wanted = set(oids)
        files = [file for file in self.files if not wanted.isdisjoint(file.changes)]
        if commits.first == 0 and commits.last >= self.last.last_commit_lsn:
            return files
        committed_later = self._files_committed_in(commits)
        return [file for file in files if file.number in committed_later or file.overlaps(commits)]

    def landed(
        self, paths: Iterable[str], others: Iterable[str] = (), repairable: Collection[str] = ()
    ) -> dict[str, LandedFile]:
        """The landed files, by their last known path. A file that was renamed or compressed since then has another path
        now.

        others: files that may be missing. repairable: paths whose files are accepted even if their content has changed,
        unless the earlier content is in a renamed file. Raises ArchiveError if one of `paths` is missing.
        """
        needed, known = sorted(set(paths)), self.prior_state
        landed = {file.path: file for file in self.landing.listing().files()}
        unchanged = {path for path, file in landed.items() if is_unchanged(file, known)}
        moved = self._moved({*needed, *others} - unchanged, landed)
        both = {path: now for path, now in moved.items() if path in repairable and path in landed and now != path}
        self._refuse_oversized(landed[path] for path in (*both, *both.values()))
        moved = {path: now for path, now in moved.items() if path not in both or not self._is_repaired(path, now)}
        files = {path: landed[now] for path in (*needed, *others) if (now := moved.get(path, path)) in landed}
        refuse(f"{path} no longer exists, but must be read again, unchanged" for path in needed if path not in files)
        self._refuse_oversized(files.values())
        return files

    def _refuse_oversized(self, files: Iterable[LandedFile]) -> None:
        refuse(error.text for error in self.landing.oversized(files).values())

    def _is_repaired(self, path: str, now: str) -> bool:
        """True if the file has its earlier content, which is in the file `now`, except for some damage. If it can't be
        read, a receiver may still be writing it."""
        before = self.landing.content(now)
        try:
            return resembles(before, self.landing.content(path))
        except ArchiveError:
            return False

    def _moved(self, paths: Collection[str], landed: Mapping[str, LandedFile]) -> dict[str, str]:
        """By old path, the new path of each file whose content is in a landed file. landed: by path."""
        known = self.prior_state
        wanted = {root: path for root, path in known.names.items() if path in paths}
        if not wanted:
            return {}
        parts: dict[int, FilePart] = {}
        for number, root in sorted(known.roots.items()):
            if root in wanted and known.parts[number].was_read:
                parts[root] = replace(known.parts[number], path=wanted[root])
        candidates = [
            path
            for path, file in landed.items()
            if not is_unchanged(file, known) or known.roots[known.by_path[path][0]] in wanted
        ]
        return {wanted[root]: path for root, path in find_parts(self.landing, candidates, parts).items()}

    @cached_property
    def unread_roots(self) -> frozenset[int]:
        """The numbers of files (of their first parts) without any readable message."""
        roots = self.prior_state.roots
        read = {roots[row["file"]] for row in self._files("file", "messages") if row["messages"]}
        return frozenset(self.prior_state.names) - read

    @cached_property
    def damaged_roots(self) -> frozenset[int]:
        """The numbers of files (of their first parts) with quarantined bytes."""
        roots = self.prior_state.roots
        return frozenset(roots[row["file"]] for row in self._files("file", "quarantined") if row["quarantined"])

    def _statuses(self, files: Collection[int]) -> StatusLookup:
        """The recorded status of every transaction with rows in these files."""
        outcomes = [
            Outcome(
                TransactionStatus(row["fate"]),
                row["xid"],
                ((row["file"], row["unit"]),),
                aborted_subxids=row["aborted"] or (),
                **{name: row[name] for name in ("scope", "commit_lsn", "commit_ts")},
            )
            for row in self._outcomes(files)
        ]
        marks = [
            Watermark(row["file"], mark["stretch"], mark["lsn"])
            for row in self._files("file", "watermarks")
            if row["file"] in files
            for mark in row["watermarks"] or ()
        ]
        return StatusLookup.of(outcomes, marks, origins=self.config.source.origins)

"""Erasures of rows: what they are asked for, what the archive is after them, and the storage that they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any

import pyarrow as pa

from pgoutput_etl.changes.row_search import RowImage, RowSearch, meets_any
from pgoutput_etl.console import Progress
from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.landing.erasure import erase
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.masking.mask_rows import masked_relation
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.framing import detect
from pgoutput_etl.protocol.messages import Message, Relation
from pgoutput_etl.replay.mirror import Row
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types.canonical_text import canonical_texts
from pgoutput_etl.types.printing import print_text
from pgoutput_etl.work.erasure.find import POSITIONS, FoundChanges
from pgoutput_etl.work.erasure.ledger_rows import COPIED
from pgoutput_etl.work.erasure.pending import PendingErasures
from pgoutput_etl.work.erasure.request import Erasure, MessageErasure, SnapshotErasure, TableErasure
from pgoutput_etl.work.erasure.snapshot_files import SnapshotFiles
from tests.simulation.archive import SimArchive
from tests.simulation.ledger import ROOT, SimStore
from tests.simulation.storage import Commit, Kind, Writer
from tests.simulation.targets import Content, SimTargets
from tests.support.erased_changes import Landed, keys_of


def random_request(chance: Random, frames: Sequence[bytes]) -> Erasure | None:
    """Of a row of a table whose key and columns stay the same, with all keys that the row and others of these had."""
    landed = Landed([b"".join(frames)])
    history = landed.replayed().assembly.relations
    named = Counter(name for oid in history.oids() for name in {r.full_name for r in history.versions(oid).relations})
    for oid in chance.sample(sorted(history.oids()), len(history.oids())):
        [first, *others] = history.versions(oid).relations
        keys = (
            []
            if others or named[first.full_name] > 1 or not _has_key(first)
            else keys_of(landed.search(oid), landed.changes(oid))
        )
        if keys:
            conditions, _ = landed.all_found(oid, dict(chance.choice(keys)))
            wanted = tuple(tuple((name, str(text)) for name, text in condition.items()) for condition in conditions)
            return Erasure(
                "a person",
                "a request",
                (TableErasure(first.full_name, wanted),),
                (),
                file="/no such folder/request.yaml",
            )
    return None


def _has_key(relation: Relation) -> bool:
    return relation.replica_identity.value != "f" and any(column.is_key for column in relation.columns)


def erased_frames(frames: Sequence[bytes], erasure: Erasure) -> list[bytes]:
    """The frames without the rows."""
    landed = Landed([b"".join(frames)])
    history = landed.replayed().assembly.relations
    starts = dict(zip(accumulate(map(len, frames), initial=0), range(len(frames)), strict=False))
    framing, after = detect(landed.files[0]), list(frames)
    [table] = erasure.tables
    for oid in history.oids():
        if table.name in {relation.full_name for relation in history.versions(oid).relations}:
            for change in landed.found(oid, *map(dict, table.conditions)):
                number = starts[change.offset]
                after[number] = erase(frames[number], framing, {0: change.in_stream}).data
    return after


def is_erased(erasure: Erasure, relation: Relation, row: Mapping[str, Any]) -> bool:
    """True for a change, as sent, of one of the rows."""
    names = [column.name for column in relation.columns]
    tuples = [read_tuple(row[name]) for name in ("old", "new") if row[name] is not None]
    values = [dict(zip(names, data.values, strict=True)) for data in tuples]
    conditions = [{name: text.encode() for name, text in condition} for condition in erasure.tables[0].conditions]
    return any(condition.items() <= own.items() for condition in conditions for own in values)


@dataclass(frozen=True, slots=True)
class SimTarget:
    """storage.ErasedTarget."""

    writer: Writer
    state: TableState
    search: RowSearch
    names: Mapping[str, tuple[int, int]]

    def other_keys(self) -> list[tuple[int, Any]]:
        return [(self.state.oid, key) for row in self._chosen() for key in self.search.other_keys(self._image(row))]

    def count(self) -> int:
        return len(self._chosen())

    def has_any(self) -> bool:
        return self.count() > 0

    def delete(self, commit: DeltaTransaction) -> int:
        count = self.count()
        if count:
            self.writer.commit(
                str(self.state.path), lambda _: Commit("MERGE", Kind.CHANGE, self._without, None, asdict(commit))
            )
        return count

    def _without(self, content: Content) -> Content:
        rows = tuple(row for row in content.rows if not self._is_chosen(row, content))
        return replace(content, rows=rows, is_erased=True)

    def _content(self) -> Content:
        version = self.writer.read_version(str(self.state.path))
        content: Content = self.writer.storage.table(str(self.state.path)).content(version)
        return content

    def _chosen(self) -> list[Row]:
        content = self._content()
        return [row for row in content.rows if self._is_chosen(row, content)]

    def _is_chosen(self, row: Row, content: Content) -> bool:
        return meets_any(self._image(row, content), self.search.wanted)

    def _image(self, row: Row, content: Content | None = None) -> RowImage:
        shape = (content or self._content()).shape
        assert shape is not None
        image = {}
        for i, column in enumerate(shape.columns):
            if column.name in self.names and not column.retired:
                [text] = print_text(column.type, pa.array([row[f"c{i}"]], column.type.arrow))
                spelled = canonical_texts(column.type, [None if text is None else text.decode()])
                image[self.names[column.name]] = row["_unrep"].get(column.name, spelled[0])
        return image


@dataclass(frozen=True, slots=True)
class SimFiles:
    """stored_files.StoredFiles."""

    archive: SimArchive

    def read(self, path: str, landing: str | None = None) -> bytes:  # noqa: ARG002
        content = self.archive.landing.read(path)
        if content is None:
            raise ArchiveError(f"{path} no longer exists, but an erasure has to rewrite it")
        return content

    def write(self, path: str, content: bytes) -> None:
        landing = self.archive.landing
        landing.storage.scheduler.note(f"{landing.process.name}: rewrites {path}")
        # A process that is killed does not rename a file later.
        landing.storage.read(landing.process, f"rewrite {path}", partial(landing.folder.put, path, content))

    def refuse_other_names(self, path: str) -> None: ...

    def record(self, rows: Sequence[Mapping[str, Any]]) -> None:
        new = {row["file"]: row for row in rows}
        store, since = self.archive.ledger.store, self.archive.last.since
        assert isinstance(store, SimStore)
        store.update(
            "files", lambda row: {**row, **new[row["file"]]} if row["batch"] >= since and row["file"] in new else row
        )


@dataclass(frozen=True, slots=True)
class SimCopies:
    """storage.ErasedCopies."""

    store: SimStore
    since: int
    positions: pa.Table

    def count(self) -> int:
        return sum(self._is_copy(table, row) for table in COPIED for row in self.store.all_rows(table))

    def erase(self) -> int:
        count = self.count()
        self.store.delete("open_transactions", partial(self._is_copy, "open_transactions"))
        self.store.update("quarantine", lambda row: {**row, "bytes": None} if self._is_copy("quarantine", row) else row)
        return count

    def _is_copy(self, table: str, row: Mapping[str, Any]) -> bool:
        files, ordinals = (self.positions.column(name).to_pylist() for name in ("file", "ordinal"))
        is_outdated = row["batch"] < self.since
        if table == "open_transactions":
            return is_outdated or (row["file"], row["ordinal"]) in zip(files, ordinals, strict=True)
        return table == "quarantine" and row["bytes"] is not None and (is_outdated or row["file"] in files)


@dataclass(frozen=True, slots=True)
class SimPendingFolder:
    """pending.PendingFolder."""

    archive: SimArchive

    def put(self, name: str, content: str, may_exist: bool) -> None:  # noqa: ARG002
        landing = self.archive.landing
        write = partial(landing.storage.kept.__setitem__, name, content)
        landing.storage.write(landing.process, f"keep {name}", write)

    def read(self, name: str) -> str | None:
        landing = self.archive.landing
        return landing.storage.read(landing.process, f"read {name}", lambda: landing.storage.kept.get(name))

    def delete_all(self) -> None:
        landing = self.archive.landing
        landing.storage.write(landing.process, "forget what was found", landing.storage.kept.clear)


@dataclass(frozen=True, slots=True)
class SimErasure:
    """storage.ErasureStorage, for one process."""

    archive: SimArchive
    targets: SimTargets

    @property
    def files(self) -> SimFiles:
        return SimFiles(self.archive)

    @property
    def pending(self) -> PendingErasures:
        return PendingErasures(SimPendingFolder(self.archive))

    def others_claimed(self, progress: Progress) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def find_changes(self, searches: Mapping[int, RowSearch], stored: Iterable[Any]) -> FoundChanges:
        changes = self.archive.all_changes(searches)
        found = [(row["relation"], searches[row["relation"]].find(row)) for row in changes]
        chosen = [(oid, change) for oid, change in found if change.is_chosen]
        offsets: dict[int, dict[int, bool]] = {}
        others: dict[int, set[Any]] = {}
        for oid, change in chosen:
            offsets.setdefault(change.file, {})[change.offset] = change.in_stream
            others.setdefault(oid, set()).update(change.other_keys)
        for oid, key in (pair for keys in stored for pair in keys):
            others.setdefault(oid, set()).add(key)
        positions = [{name: getattr(change, name) for name in POSITIONS.names} for _, change in chosen]
        other_keys = {oid: frozenset(keys) for oid, keys in others.items() if keys}
        counts = Counter(oid for oid, _ in chosen)
        return FoundChanges(offsets, pa.Table.from_pylist(positions, POSITIONS), counts, frozenset(), other_keys)

    def find_messages(self, is_chosen: Callable[[Message], bool]) -> list[dict[str, Any]]:
        raise AssertionError(f"no Messages are erased in this simulation: {is_chosen}")

    def snapshot_files(self, searches: Mapping[int, RowSearch], wanted: SnapshotErasure) -> SnapshotFiles:
        raise AssertionError(f"no snapshot's files are erased in this simulation: {searches}, {wanted}")

    def exists(self, place: Place) -> bool:
        return self.targets.exists(place)

    def target(self, state: TableState, search: RowSearch) -> SimTarget:
        policy = self.archive.masking_policy
        rules = {} if policy is None or state.oid not in policy.tables else policy.tables[state.oid].rules
        [relation], [columns] = search.versions.relations, search.columns
        if masked_relation(relation, rules) != state.relation:
            raise TableError("its columns are masked in another way")
        names = {column.name: column_id for column, column_id in zip(relation.columns, columns, strict=True)}
        return SimTarget(self.targets.writer, state, search, {n: c for n, c in names.items() if n not in rules})

    def copies(self, since: int, positions: pa.Table, messages: tuple[MessageErasure, ...]) -> SimCopies:
        assert not messages
        store = self.archive.ledger.store
        assert isinstance(store, SimStore)
        return SimCopies(store, since, positions)

    def ledger_tables(self) -> list[Place]:
        places = [Place(f"{ROOT}/{table}") for table in COPIED]
        return [place for place in places if self.exists(place)]

    def refuse_what_stays(self, places: Iterable[Place]) -> None: ...

    def purge(self, place: Place, commit: DeltaTransaction) -> int:
        writer, path, metadata = self.targets.writer, str(place), asdict(commit)
        writer.commit(path, lambda _: Commit("REORG", Kind.CHANGE, lambda rows: rows, None, metadata))
        writer.commit(path, lambda _: Commit("SET TBLPROPERTIES", Kind.METADATA, lambda rows: rows, None, metadata))
        writer.vacuum(path, 0)
        writer.commit(path, lambda _: Commit("UNSET TBLPROPERTIES", Kind.METADATA, lambda rows: rows, None, metadata))
        return writer.read_version(path)

    def older_files(self, place: Place) -> int:
        return len(self.targets.writer.storage.table(str(place)).older_versions())

    def newest_version(self, place: Place) -> int:
        return self.targets.writer.read_version(str(place))

    def count(self, place: Place) -> int:
        return self.targets.count(place)

    def discard_scratch(self) -> None: ...

    def pool(self, verb: str, progress: Progress) -> TablePool:
        return TablePool(2, verb, progress, self.targets.machine.pool)

    def remains(self, oids: Collection[int], rewritten: Sequence[str]) -> Iterator[str]:  # noqa: ARG002
        return iter(())

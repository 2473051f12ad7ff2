"""The ledger on simulated storage. What decides and in which order things are written is the package's own code; only
rows that Spark would join are joined here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.ingest.executors import iterate_blocks, pack_blocks, with_status
from pgoutput_etl.ingest.quarantine import damage_rows
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ledger.batch import Batch, BatchResult
from pgoutput_etl.ledger.batches import LedgerBatches
from pgoutput_etl.ledger.claim_files import ClaimFiles
from pgoutput_etl.ledger.claims import Claim
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.ledger.quarantine import LedgerQuarantine
from pgoutput_etl.ledger.store import LedgerStore, Store
from pgoutput_etl.ledger.tables import SCHEMAS, RowRange
from pgoutput_etl.ledger.transactions import BatchHistory, LedgerTransactions, PendingTransactions, open_fragments
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind, unpacked
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.timestamps import time_of
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.logical_messages import COUNTED_BY, IDENTIFIED_BY, messages_that_count
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED, TRIMMED, FragmentId, TransactionStatus
from tests.simulation.scheduler import SimMachine
from tests.simulation.storage import Commit, ConflictError, Kind, Storage, Writer

T = TypeVar("T")

ROOT = "root/_pgoutput_etl"
SOURCE = "s"


@dataclass(slots=True, eq=False)
class Chunk:
    """Rows that one commit appended."""

    batch: int
    table: pa.Table
    _rows: list[dict[str, Any]] | None = None

    def rows(self) -> list[dict[str, Any]]:
        if self._rows is None:
            self._rows = self.table.to_pylist()
        return self._rows


@dataclass(slots=True)
class SimObjects:
    """claim_files.Objects, with S3's conditional put."""

    storage: Storage
    writer: Writer

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        found: list[str] = self._read("list claims", lambda: [n for n in self.storage.objects if n.startswith(prefix)])
        return sorted({name.removeprefix(prefix).partition("/")[0] for name in found})

    def read(self, name: str) -> str | None:
        return self._read(f"read claim {name}", lambda: self.storage.objects.get(name))

    def exists(self, name: str) -> bool:
        return self._read(f"look for claim {name}", lambda: name in self.storage.objects)

    def put(self, name: str, text: str, may_exist: bool) -> None:
        assert may_exist
        self._write(f"put claim {name}", partial(self.storage.objects.__setitem__, name, text))

    def can_put_once(self, name: str) -> bool:  # noqa: ARG002
        return True

    def put_once(self, name: str, text: str) -> bool:
        return self._write(f"put claim {name} once", lambda: self.storage.objects.setdefault(name, text) is text)

    def puts_unseen(self) -> bool:
        return False

    def delete(self, name: str) -> None:
        self._write(f"delete claim {name}", partial(self.storage.objects.pop, name, None))

    def _read(self, what: str, do: Callable[[], T]) -> T:
        return self.storage.read(self.writer.process, what, do)

    def _write(self, what: str, do: Callable[[], T]) -> T:
        return self.storage.write(self.writer.process, what, do)


class SimStore(Store):
    def __init__(self, storage: Storage, machine: SimMachine) -> None:
        super().__init__(SOURCE, machine)
        self.storage = storage
        self.writer = Writer(storage, machine.own)

    @property
    def is_local(self) -> bool:
        return True

    def columns_where(self, table: str, names: Sequence[str], chosen: RowRange) -> pa.Table:
        schema = pa.schema([SCHEMAS[table].field(name) for name in names])
        chunks = self._chunks(table, chosen)
        if not chunks:
            return schema.empty_table()
        rows = pa.concat_tables([chunk.table for chunk in chunks])
        if chosen.xids is not None:
            xid = rows.column("xid")
            rows = rows.filter(pc.and_(pc.greater_equal(xid, chosen.xids[0]), pc.less_equal(xid, chosen.xids[1])))
        return rows.select(names)

    def rows(self, table: str, names: Sequence[str], first: int = 0, before: int | None = None) -> list[dict[str, Any]]:
        found = (row for chunk in self._chunks(table, RowRange(first, before)) for row in chunk.rows())
        return [{name: row[name] for name in names} for row in found]

    def _chunks(self, table: str, chosen: RowRange) -> list[Chunk]:
        path = f"{ROOT}/{table}"
        version = self.writer.read_version(path)
        chunks: list[Chunk] = [] if version < 0 else self.storage.table(path).content(version)
        before = chosen.before if chosen.before is not None else 1 << 62
        return [chunk for chunk in chunks if chosen.first <= chunk.batch < before]

    def append_table(self, table: str, rows: pa.Table, batch: int, step: str = "") -> None:
        """As Spark and delta-rs append: again after a conflict, unless the other commit was the same."""
        chunk = Chunk(batch, _complete(rows, SCHEMAS[table]))
        transaction = (self.application(table, step), batch)

        def prepare(content: list[Chunk] | None) -> Commit:
            kind = Kind.METADATA if content is None else Kind.APPEND
            return Commit("append", kind, lambda old: [*(old or ()), chunk], transaction)

        for attempt in range(20):
            try:
                self.writer.commit(f"{ROOT}/{table}", prepare)
                return
            except ConflictError:
                if attempt == 19:
                    raise

    def delete(self, table: str, is_obsolete: Callable[[dict[str, Any]], bool]) -> None:
        def remaining(content: list[Chunk] | None) -> list[Chunk]:
            chunks = []
            for chunk in content or ():
                kept = [not is_obsolete(row) for row in chunk.rows()]
                if any(kept):
                    whole = all(kept)
                    rows = chunk.table if whole else chunk.table.filter(pa.array(kept, pa.bool_()))
                    chunks.append(chunk if whole else Chunk(chunk.batch, rows))
            return chunks

        self.writer.commit(f"{ROOT}/{table}", lambda _: Commit("DELETE", Kind.CHANGE, remaining))

    def all_rows(self, table: str) -> list[dict[str, Any]]:
        return self.rows(table, SCHEMAS[table].names)

    def update(self, table: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """With one commit."""
        schema = SCHEMAS[table]

        def changed(content: list[Chunk] | None) -> list[Chunk]:
            chunks = ((c.batch, [change(row) for row in c.rows()]) for c in content or ())
            return [Chunk(batch, pa.Table.from_pylist(rows, schema)) for batch, rows in chunks]

        if self.writer.read_version(f"{ROOT}/{table}") >= 0:
            self.writer.commit(f"{ROOT}/{table}", lambda _: Commit("UPDATE", Kind.CHANGE, changed))

    def claim_files(self, report: Callable[[str], None] = lambda _: None) -> ClaimFiles | None:
        if self.storage.is_atomic:
            return None
        return ClaimFiles(SimObjects(self.storage, self.writer), SOURCE, report, self.machine, self.dead_claims)


def _complete(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        _typed(rows.column(field.name), field.type)
        if field.name in rows.column_names
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _typed(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == wanted else column.cast(wanted)


class SimHistory(BatchHistory):
    def unknown_resent(self) -> list[tuple[int, int, int]]:
        ended = self.transactions.table(self.batch, self.rows, self.rows.ended_on_driver)
        ours = [row for row in ended.to_pylist() if row["commit_lsn"] is not None]
        before = self.transactions.store.rows("transactions", ("fate", "xid", "commit_lsn"), 0, self.batch.number)
        known = {(row["xid"], row["commit_lsn"]) for row in (*before, *ours) if row["fate"] in ONCE_COMMITTED}
        lsns = {lsn for _, lsn in known}
        trimmed = max((row["commit_lsn"] for row in before if row["fate"] == TRIMMED), default=0)
        unknown: dict[int, tuple[int, int, int]] = {}
        for row in sorted(ours, key=lambda row: (row["file"] or 0, row["commit_lsn"])):
            is_known = row["commit_lsn"] in lsns if row["xid"] is None else (row["xid"], row["commit_lsn"]) in known
            if row["fate"] == TransactionStatus.RESENT.value and row["commit_lsn"] > trimmed and not is_known:
                unknown.setdefault(row["file"], (row["file"], row["xid"], row["commit_lsn"]))
        return list(unknown.values())


class SimTransactions(LedgerTransactions):
    def history_of(self, batch: Batch, rows: MessageRows, commits: int) -> SimHistory:
        return SimHistory(self, batch, rows, commits)

    def append_messages(self, batch: Batch, rows: MessageRows, counts: Any) -> None:
        if not any(counts.values()):
            return
        found = {_identity(message): message for message in reversed([*_messages(rows)])}
        names = ("transactional", *IDENTIFIED_BY)
        stored = {_identity(row) for row in self.store.rows("messages", names, before=batch.number)}
        is_again = batch.since == batch.number
        new = [
            {**message, "commit_ts": None if message["commit_ts"] is None else time_of(message["commit_ts"])}
            for identity, message in found.items()
            if identity not in stored or (message["transactional"] and not is_again)
        ]
        self.store.append_rows("messages", new, batch.number)


def _messages(rows: MessageRows) -> Iterator[dict[str, Any]]:
    """In the order of the archive."""
    kinds = (BlockKind.LOGICAL.value, BlockKind.WAITING_LOGICAL.value)
    assert rows.blocks.local is not None
    tables = [rows.blocks.local, *([] if rows.waiting is None else [cast(pa.Table, rows.waiting)])]
    blocks = [b for table in tables for b in iterate_blocks(table.to_batches()) if b["kind"] in kinds]
    counted = (messages_that_count(rows.statuses.of_batch(unpacked(b, COUNTED_BY)), rows.statuses) for b in blocks)
    yield from sorted((m for batch in counted for m in batch.to_pylist()), key=lambda m: (m["file"], m["ordinal"]))


def _identity(message: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(message[name] for name in ("transactional", *IDENTIFIED_BY))


class SimPending(PendingTransactions):
    def append(self, batch: Batch, rows: MessageRows) -> None:
        if not open_fragments(rows.assembly):
            return
        assert rows.blocks.local is not None
        kinds = pa.array([BlockKind.CHANGE.value, BlockKind.LOGICAL.value])
        own = rows.blocks.local.filter(pc.is_in(rows.blocks.local.column("kind"), kinds))
        parts = [with_status(block, rows.statuses) for block in iterate_blocks(own.to_batches())]
        if not parts:
            return
        found = pa.Table.from_batches(parts)
        is_open = pc.equal(found.column("fate"), TransactionStatus.OPEN.value)
        found = found.filter(pc.and_(is_open, pc.greater_equal(found.column("file"), batch.first_file)))
        if len(found):
            stamp = {"source": pa.repeat(SOURCE, len(found)), "batch": pa.repeat(batch.number, len(found))}
            own_columns = {name: found.column(name) for name in MESSAGE_SCHEMA.names}
            masks_of = rows.assembly.relations.masks_of
            masks = (None if oid is None else dict(masks_of(oid)) for oid in found.column("relation").to_pylist())
            uses = pa.array([json.dumps(own) if own else None for own in masks], pa.string())
            columns = pa.table({**stamp, **own_columns, "uses": uses})
            self.store.append_table("open_transactions", columns, batch.number)

    def blocks(self, assembly: Assembly, batch: Batch) -> Any:
        others = [name for name in MESSAGE_SCHEMA.names if name not in ("file", "unit")]
        rows = self._waiting(assembly, batch, *others)
        if rows is None:
            return None
        batches = rows.select(MESSAGE_SCHEMA.names).combine_chunks().to_batches()
        return pa.Table.from_batches(pack_blocks(batches, BlockKind.WAITING), BLOCK_SCHEMA)

    def masks(self, assembly: Assembly, batch: Batch) -> list[tuple[int, dict[str, str]]]:
        rows = self._waiting(assembly, batch, "relation", "uses")
        pairs = () if rows is None else zip(*(rows.column(n).to_pylist() for n in ("relation", "uses")), strict=True)
        found = dict.fromkeys((oid, uses) for oid, uses in pairs if oid is not None)
        return [(oid, json.loads(uses or "{}")) for oid, uses in found]

    def _waiting(self, assembly: Assembly, batch: Batch, *names: str) -> pa.Table | None:
        fragments = set(open_fragments(assembly))
        if not fragments:
            return None
        rows = self.store.columns("open_transactions", ["file", "unit", *names], batch.since, batch.number)
        places = zip(rows.column("file").to_pylist(), rows.column("unit").to_pylist(), strict=True)
        return rows.filter(pa.array([place in fragments for place in places], pa.bool_()))

    def delete_closed(self, fragments: Iterable[FragmentId], assembly: Assembly) -> None:
        still_open = set(open_fragments(assembly))
        ended = {fragment for fragment in fragments if fragment not in still_open}
        if not ended:
            return

        store = cast(SimStore, self.store)
        store.delete("open_transactions", lambda row: (row["file"], row["unit"]) in ended)


class SimQuarantine(LedgerQuarantine):
    def append(self, batch: Batch, result: BatchResult, path_of: Callable[[int], str]) -> None:
        held = [
            {"schema": t.schema, "table": t.table, "relation": t.oid, "lsn": t.last_commit_lsn, "reason": t.reason}
            for t in result.tables
            if t.status == "held" and t != batch.tables.get(t.oid)
        ]
        found = [{**row, "bytes": self._bytes(result.rows, row)} for row in damage_rows(result.scans, path_of)]
        self.store.append_rows("quarantine", [*held, *found], batch.number)

    def _bytes(self, rows: MessageRows, damage: Mapping[str, Any]) -> bytes | None:
        assert rows.blocks.local is not None
        blocks = (b for b in iterate_blocks(rows.blocks.local.to_batches()) if b["kind"] == BlockKind.DAMAGE.value)
        found = (row for block in blocks for row in unpacked(block, ["file", "offset", "body"]).to_pylist())
        place = damage["file"], damage["offset"]
        return next((row["body"] for row in found if (row["file"], row["offset"]) == place), None)

    def mark_redriven(self, batch: Batch, relations: Iterable[int], with_bytes: bool = False) -> None:
        oids = set(relations)

        def is_marked(row: dict[str, Any]) -> bool:
            is_own = row["relation"] in oids or (with_bytes and row["relation"] is None)
            return is_own and row["batch"] < batch.number and row["redriven"] is None

        store = cast(SimStore, self.store)
        store.update("quarantine", lambda row: {**row, "redriven": batch.number} if is_marked(row) else row)


Claimed = Callable[..., AbstractContextManager[Callable[[], None]]]


@dataclass(frozen=True, slots=True)
class SimBatches(LedgerBatches):
    """watch: wraps `claimed`."""

    watch: Callable[[Claimed], Claimed]

    def known_tables(self) -> list[tuple[int, frozenset[int]]]:
        """No snapshot knows all tables, and reading that would change what every seed means."""
        return []

    @contextmanager
    def claimed(
        self, last: Batch | None, batch: Batch, progress: Callable[[str], None], claim: Claim | None = None
    ) -> Iterator[Callable[[], None]]:
        with self.watch(partial(LedgerBatches.claimed, self))(last, batch, progress, claim) as check:
            yield check


def sim_ledger(
    storage: Storage, machine: SimMachine, watch: Callable[[Claimed], Claimed] = lambda claimed: claimed
) -> Ledger:
    """watch: as in SimBatches."""
    store = cast(LedgerStore, SimStore(storage, machine))
    ledger = Ledger(store, SimTransactions(store), SimPending(store), SimQuarantine(store))
    ledger.batches = SimBatches(store, watch)
    return ledger

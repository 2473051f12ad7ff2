"""What a run pays for files that were read long ago: to plan one new file, and to compare that with what is known.

Two ways: all known files as Python objects, as an earlier version had them, and the few that matter, picked out of
columns. Then the same few where the ledger is an older version's, which kept no heads to look contents up by.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from random import Random
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.scenarios import scaled
from pgoutput_etl.landing.file_index import INDEX_SCHEMA, LISTING_SCHEMA, FileIndex, Listing
from pgoutput_etl.landing.fingerprint import FilePart, KnownContents, LandedFile, ScanTask, heads_of
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.landing.known_files import KnownFiles, candidates
from pgoutput_etl.protocol.framing import Framing
from tests.support import encoder
from tests.support.small_archives import insert, table, transaction

_KNOWN = (1_000, 10_000, 80_000)
_SIZES = range(20_000, 120_000)  # bytes of a known file
_MESSAGES = 3_000  # of the new file: some 130 kB, so that it is longer than those that are known


@dataclass(frozen=True, slots=True)
class KnownCost:
    """way: all, few or few of an older ledger. known: files. plan: the driver's seconds to find what is new and what it
    has to be compared with. shipped: bytes of that in each task. scan: seconds for the new file."""

    way: str
    known: int
    plan: float
    shipped: int
    scan: float


def measure_known_files(scale: float, runs: int, progress: Callable[[str], None]) -> list[KnownCost]:
    found = []
    content = _new_file()
    for count in sorted({scaled(number, scale, 100) for number in _KNOWN}):
        progress(f"{count:,} known files")
        rows, listing = _archive(count, len(content))
        for way, plan in (
            ("all", _plan_with_all),
            ("few", _plan_with_few),
            ("few, an older ledger", _plan_without_heads),
        ):
            costs = [_cost(plan, rows, listing, content) for _ in range(runs)]
            plans, shipped, scans = zip(*costs, strict=True)
            found.append(KnownCost(way, count, median(plans), shipped[0], median(scans)))
    return found


def _cost(
    plan: Callable[..., KnownContents], rows: pa.Table, listing: pa.Table, content: bytes
) -> tuple[float, int, float]:
    begun = time.perf_counter()
    known = plan(rows, listing)
    planned = time.perf_counter() - begun
    shipped = len(pickle.dumps(known))
    begun = time.perf_counter()
    scan_part(_NEW, content, ScanTask(0, len(content)), known, Framing.LENGTH_PREFIXED)
    return planned, shipped, time.perf_counter() - begun


def _plan_with_all(rows: pa.Table, listing: pa.Table) -> KnownContents:
    parts = {row.pop("file"): FilePart(**row) for row in rows.to_pylist()}
    known = KnownFiles.of(parts)
    candidates([LandedFile(**row) for row in listing.to_pylist()], known)
    return known.contents()


def _plan_with_few(rows: pa.Table, listing: pa.Table) -> KnownContents:
    index, there = FileIndex(rows), Listing(listing)
    looked_at = index.to_inspect(there)
    files = candidates(looked_at, index.known([file.path for file in looked_at]))
    known = index.known([file.path for file in files.values()])
    there.among(known.places(file.path for file in files.values()))
    index.around([_NEW])
    return known.contents(index.unkeyed())


def _plan_without_heads(rows: pa.Table, listing: pa.Table) -> KnownContents:
    at = rows.schema.get_field_index("head")
    return _plan_with_few(rows.set_column(at, "head", pa.nulls(len(rows), pa.string())), listing)


_NEW = "file:/lake/landing/shop/shop-9999999.bin.zst"


def _new_file() -> bytes:
    messages = [
        m
        for n in range(_MESSAGES // 3)
        for m in transaction(n + 1, n + 1, *([table()] * (n == 0)), insert(str(n), "v" * 40))
    ]
    return encoder.length_prefixed(encoder.encode(message) for message in messages)


def _archive(count: int, size: int) -> tuple[pa.Table, pa.Table]:
    """What the ledger and the landing folder have."""
    dice = Random(count)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        path, consumed = f"file:/lake/landing/shop/shop-{number:07}.bin.zst", dice.choice(_SIZES)
        digits = sha256(str(number).encode()).hexdigest()
        part = FilePart(
            path,
            consumed // 4,
            number,
            consumed=consumed,
            prefix_hash=digits,
            distinctive=True,
            varied=True,
            framing=Framing.LENGTH_PREFIXED.value,
            ends_in_stream=False,
            decompressed_size=consumed,
            head=heads_of(digits.encode())[-1],
        )
        rows.append({"file": number, **asdict(part)})
    listed = [{name: row[name] for name in LISTING_SCHEMA.names} for row in rows]
    listed.append({"path": _NEW, "size": size, "modified": count})
    return pa.Table.from_pylist(rows, INDEX_SCHEMA), pa.Table.from_pylist(listed, LISTING_SCHEMA)

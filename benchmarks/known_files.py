"""Measures the cost of known files in a run: for planning one new file, and for comparing it with known contents.

Three ways: all known files as Python objects; only the few that matter, selected from columns; and the same few with an
older ledger, which has no heads to find contents by.
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
from pgoutput_etl.landing.known_files import candidates
from pgoutput_etl.protocol.framing import Framing
from tests.support import encoder
from tests.support.landing_folder import every_known_file
from tests.support.small_archives import insert, table, transaction

_KNOWN = (1_000, 10_000, 80_000)
_SIZES = range(20_000, 120_000)  # bytes of a known file
_MESSAGES = 3_000  # of the new file: some 130 kB, so that it is longer than all known files


@dataclass(frozen=True, slots=True)
class KnownCost:
    """way: all, few, or few of an older ledger. known: number of files. plan: the driver's seconds to find the new file
    and the contents to compare it with. shipped: bytes of those contents in each task. scan: seconds for the new file.
    """

    way: str
    known: int
    plan: float
    shipped: int
    scan: float


def measure_known_files(scale: float, runs: int, progress: Callable[[str], None]) -> list[KnownCost]:
    results = []
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
            results.append(KnownCost(way, count, median(plans), shipped[0], median(scans)))
    return results


def _cost(
    plan: Callable[..., KnownContents], rows: pa.Table, listing: pa.Table, content: bytes
) -> tuple[float, int, float]:
    started = time.perf_counter()
    known = plan(rows, listing)
    planned = time.perf_counter() - started
    shipped = len(pickle.dumps(known))
    started = time.perf_counter()
    scan_part(_NEW, content, ScanTask(0, len(content)), known, Framing.LENGTH_PREFIXED)
    return planned, shipped, time.perf_counter() - started


def _plan_with_all(rows: pa.Table, listing: pa.Table) -> KnownContents:
    parts = {row.pop("file"): FilePart(**row) for row in rows.to_pylist()}
    known = every_known_file(parts)
    candidates([LandedFile(**row) for row in listing.to_pylist()], known)
    return known.contents()


def _plan_with_few(rows: pa.Table, listing: pa.Table) -> KnownContents:
    index, landed = FileIndex(rows), Listing(listing)
    unconfirmed = index.to_inspect(landed)
    files = candidates(unconfirmed, index.known([file.path for file in unconfirmed]))
    known = index.known([file.path for file in files.values()])
    landed.among(known.places([file.path for file in files.values()]))
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
    """The file index of the ledger, and the listing of the landing folder."""
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

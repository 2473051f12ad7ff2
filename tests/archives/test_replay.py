"""Real archives, replayed without Spark: every table equals the server's.

tests/support/captures.py lists values that the archives don't contain. `make soak` replays more archives.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.captures import CAPTURES, NEVER_SENT_VALUES, ignored_columns, truth_tables
from tests.support.replays import replay_of, replay_of_slot
from tests.support.truth import assert_equals_truth

Step = tuple[list[Path], Path]
SERVERS = ("pg10", "pg14", "pg16")


def slots(server: str) -> list[str]:
    """The folders of landed files."""
    folders = {path.name for path in (CAPTURES / server).iterdir() if path.is_dir()}
    return sorted(folders - {"truth", "truth_mid"})


def landed(*parts: str) -> Path:
    """The path of an archive's file, compressed or not."""
    plain = CAPTURES.joinpath(*parts)
    return plain if plain.exists() else plain.with_name(f"{plain.name}.gz")


def archives() -> Iterator[tuple[str, list[Step]]]:
    """Each archive's name and steps: the files of a step, and the folder with the server's rows at that time."""
    for server in SERVERS:
        truth, truth_mid = CAPTURES / server / "truth", CAPTURES / server / "truth_mid"
        for slot in slots(server):
            first, second = (landed(server, slot, name) for name in ("000.copydata", "001.copydata"))
            yield f"{server}-{slot}", [([first], truth_mid), ([second], truth)]
        for name in ("recv.bin", "sqlbin.pgcopy.gz"):
            yield f"{server}-{name}", [([landed(server, name)], truth)]
    for slot in slots("random16"):
        files = [landed("random16", slot, f"{number:03}.copydata") for number in range(10)]
        yield f"random16-{slot}", [(files, CAPTURES / "random16" / "truth")]


ARCHIVES = dict(archives())


@pytest.mark.parametrize("steps", ARCHIVES.values(), ids=ARCHIVES.keys())
def test_every_table_equals_the_servers(steps: list[Step]) -> None:
    landed_so_far: list[Path] = []
    for files, truth in steps:
        landed_so_far += files
        replay = replay_of(*landed_so_far)
        holders = replay.name_holders()
        rows = {oid: table.rows for oid, table in replay.tables().items()}
        for table in truth_tables(truth):
            oid = holders.get((table.schema, table.name), 0)
            assert_equals_truth(
                rows.get(oid, []),
                table.truth,
                ignored_columns(truth.parent.name),
                NEVER_SENT_VALUES.get(table.full_name),
            )


def test_every_slot_exists() -> None:
    """Detects a missing folder."""
    assert slots("pg10") == ["v1"]
    assert slots("pg14") == ["v1", "v1_binary", "v2_stream"]
    assert slots("pg16") == [
        "v1",
        "v1_binary",
        "v2_stream",
        "v3_twophase",
        "v3_twophase_only",
        "v4_parallel",
        "v4_twophase_parallel_binary",
    ]
    assert slots("random16") == ["v1", "v2", "v3", "v4b"]
    assert all(path.exists() for steps in ARCHIVES.values() for files, _ in steps for path in files)
    tables = {truth.parent.name: len(truth_tables(truth)) for steps in ARCHIVES.values() for _, truth in steps}
    assert tables == {"pg10": 14, "pg14": 14, "pg16": 14, "random16": 5}


@pytest.mark.parametrize("slot", ["v3_twophase", "v3_twophase_only"])
def test_prepared_transactions_stay_open_and_out_of_the_tables(slot: str) -> None:
    replay = replay_of_slot(CAPTURES / "pg16" / slot)
    assert [outcome.gid for outcome in replay.assembly.open_outcomes()] == ["gid-5"]


STAMPS = ("_pg_commit_lsn", "_pg_commit_ts", "_pg_xid")
BINARY_AND_TEXT = [
    ("pg14/v1_binary", "pg14/v1"),
    ("pg16/v1_binary", "pg16/v1"),
    ("pg16/v4_twophase_parallel_binary", "pg16/v3_twophase"),
    ("random16/v4b", "random16/v3"),
]


@pytest.mark.parametrize(("binary", "text"), BINARY_AND_TEXT)
def test_a_binary_slot_gives_the_same_values_as_a_text_slot(binary: str, text: str) -> None:
    """Compares types, values and unrepresentable texts bit by bit, not through the server's text."""
    have, want = (replay_of_slot(CAPTURES / slot).tables() for slot in (binary, text))
    assert have.keys() == want.keys()
    for oid, table in want.items():
        assert have[oid].shape.columns == table.shape.columns
        rows, expected = (sorted(map(_bits, tables[oid].rows)) for tables in (have, want))
        assert rows == expected


def _bits(row: dict[str, Any]) -> str:
    """repr distinguishes -0.0 and NaN. A two-phase slot has other commit LSNs."""
    return repr(
        {name: value for name, value in row.items() if name not in ("_pg_commit_lsn", "_pg_commit_ts", "_pg_xid")}
    )

"""Tuples that are read from the landed file equal those that a scan copies, and a changed file is an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl import jit
from pgoutput_etl.compression import decompress
from pgoutput_etl.landing.fingerprint import KnownContents, ScanTask
from pgoutput_etl.landing.incremental_scan import scan_part
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    OldTupleKind,
    PgoutputMessage,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    Truncate,
    TupleData,
    Update,
)
from pgoutput_etl.scan import landed_tuples
from pgoutput_etl.scan.blocks import BlockKind, Packer, unpacked
from pgoutput_etl.scan.landed_tuples import RereadError, TupleFile
from tests.support.captures import DATA, files_of
from tests.support.encoder import Row, copydata, encode, length_prefixed, pgcopy, recvlogical

FILES = [path for server in sorted(DATA.iterdir()) for slot in sorted(server.iterdir()) if slot.is_dir()
         for path in files_of(slot) if not slot.name.startswith("truth")]  # fmt: skip

Block = Mapping[str, Any]


def blocks(path: Path, leaves: bool, number: int = 7) -> list[Block]:
    content = path.read_bytes()
    task = ScanTask(number, len(content), True)
    scanned = scan_part(
        str(path), content, task, KnownContents({}), salvages=True, leaves_tuples_from=0 if leaves else None
    )
    packer = Packer()
    if not scanned.has_tuples:
        packer.landed[number] = TupleFile.at(str(path), Framing(scanned.summary.framing))
    packed = [block for batch in scanned.batches for block in packer.add(batch)]
    return [block for batch in (*packed, *packer.rest()) for block in batch.to_pylist()]


def rows(found: list[Block]) -> list[dict[str, Any]]:
    unordered = [row for block in found for row in unpacked(block).to_pylist()]
    return sorted(unordered, key=lambda row: (row["ordinal"] or -1, row["tag"], row["relation"] or 0))


@pytest.fixture(params=[True, False], ids=["compiled", "readable"])
def is_compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(jit, "AVAILABLE", False, raising=False)
    return bool(request.param)


@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.parts[-3:]))
@pytest.mark.usefixtures("is_compiled")
def test_tuples_of_real_archives_are_read_from_their_files(path: Path, tmp_path: Path) -> None:
    assert all(block["landed"] is None for block in blocks(path, leaves=True)), "compressed files are not read again"
    landed = tmp_path / path.stem
    landed.write_bytes(decompress(path.read_bytes(), path.name))
    copied, left = blocks(landed, leaves=False), blocks(landed, leaves=True)
    changes = [block for block in left if block["kind"] == BlockKind.CHANGE.value]
    assert all(block["landed"] is not None for block in changes)
    assert rows(left) == rows(copied)


COLUMNS = (RelationColumn(True, "id", 23, -1), RelationColumn(False, "note", 25, -1))
RELATION = Relation(None, 16384, "public", "t", ReplicaIdentity.DEFAULT, COLUMNS)


def one(*values: bytes | None) -> TupleData:
    kinds = bytes(b"n"[0] if value is None else b"t"[0] for value in values)
    return TupleData(kinds, values)


def messages(notes: list[bytes]) -> list[bytes]:
    changes: list[PgoutputMessage] = [
        *(Insert(None, 16384, one(b"%d" % i, note)) for i, note in enumerate(notes)),
        Update(None, 16384, OldTupleKind.KEY, one(b"0", None), one(b"100", b"moved")),
        Truncate(None, 0, (16384,)),
        Delete(None, 16384, OldTupleKind.KEY, one(b"1", None)),
    ]
    sent: list[PgoutputMessage] = [Begin(900, 1, 7), RELATION, *changes, Commit(900, 901, 1)]
    return [encode(message) for message in sent]


FRAMED: dict[Framing, Callable[[list[bytes]], bytes]] = {
    Framing.RECVLOGICAL: recvlogical,
    Framing.LENGTH_PREFIXED: length_prefixed,
    Framing.PGCOPY: lambda bodies: pgcopy(Row(900, 7, body) for body in bodies),
    Framing.COPYDATA: lambda bodies: copydata(Row(900, 7, body) for body in bodies),
}


@pytest.mark.parametrize("framing", FRAMED)
@pytest.mark.usefixtures("is_compiled")
def test_tuples_are_read_in_each_framing_and_in_several_windows(
    framing: Framing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landed_tuples, "_WINDOW_BYTES", 100)
    path = tmp_path / "landed"
    path.write_bytes(FRAMED[framing](messages([b"x" * n for n in range(60)])))
    left = blocks(path, leaves=True)
    assert rows(left) == rows(blocks(path, leaves=False))
    assert any(row["tag"] == "T" for row in rows(left))


@pytest.fixture
def landed(tmp_path: Path) -> Path:
    path = tmp_path / "current"
    path.write_bytes(recvlogical(messages([b"one", b"two", b"three"])))
    return path


@pytest.mark.usefixtures("is_compiled")
def test_a_renamed_file_is_found_again(landed: Path) -> None:
    left, expected = blocks(landed, leaves=True), rows(blocks(landed, leaves=False))
    landed.rename(landed.with_name("000.bin"))
    assert rows(left) == expected
    landed.write_bytes(recvlogical(messages([b"of the next file"])))
    assert rows(left) == expected


def test_a_file_that_grows_keeps_its_tuples(landed: Path) -> None:
    left, expected = blocks(landed, leaves=True), rows(blocks(landed, leaves=False))
    with landed.open("ab") as file:
        file.write(b"B" * 100)
    assert rows(left) == expected


@pytest.mark.parametrize(
    ("replacement", "found"),
    [
        (None, "it can't be read: No such file or directory"),
        (b"", "the end of the file"),
        (recvlogical([b"\xff" * 2000]), "no message"),
        (recvlogical(messages([b"one", b"two"])), ""),
        (
            recvlogical(messages([b"one", b"two", b"three"]).copy()).replace(b"\0\0\x40\0", b"\0\0\x40\1"),
            "another change",
        ),
    ],
    ids=["removed", "emptied", "garbage", "shorter", "another table"],
)
@pytest.mark.usefixtures("is_compiled")
def test_a_changed_file_is_an_error(landed: Path, replacement: bytes | None, found: str) -> None:
    left = blocks(landed, leaves=True)
    if replacement is None:
        landed.unlink()
    else:
        landed.write_bytes(replacement)
    with pytest.raises(RereadError) as raised:
        rows(left)
    assert str(raised.value).startswith(f"{landed}: offset ")
    assert found in str(raised.value)
    assert "three" not in str(raised.value), "values are never in errors"

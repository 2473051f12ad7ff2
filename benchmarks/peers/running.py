"""Builds the decoders in other languages with their own tools, and runs them on a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpora import BUILD

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Peer:
    """build: the command to run in `folder`. program: the file that it creates."""

    language: str
    tool: str
    folder: Path
    build: tuple[str, ...]
    program: Path


@dataclass(frozen=True, slots=True)
class Decoded:
    """The output of a peer for one of its decoders. seconds: of processor time, one per run."""

    decoder: str
    messages: int
    seconds: tuple[float, ...]


_GO, _RUST = BUILD / "peers/go", BUILD / "peers/rust"
PEERS = (
    Peer("Go", "go", _FOLDER / "go", ("go", "build", "-o", str(_GO), "."), _GO),
    Peer(
        "Rust",
        "cargo",
        _FOLDER / "rust",
        ("cargo", "build", "--release", "--locked", "--quiet", "--target-dir", str(_RUST)),
        _RUST / "release/peers",
    ),
)


def built_peers(progress: Callable[[str], None]) -> tuple[list[Peer], list[str]]:
    """The peers that can run on this machine, and a line per peer that can't."""
    ready: list[Peer] = []
    missing: list[str] = []
    for peer in PEERS:
        if shutil.which(peer.tool) is None:
            missing.append(f"{peer.language}: left out, as {peer.tool} is not installed")
            continue
        progress(f"building the {peer.language} decoders")
        built = subprocess.run(peer.build, cwd=peer.folder, capture_output=True, text=True, check=False)
        if built.returncode:
            missing.append(f"{peer.language}: left out, as it can't be built: {built.stderr.strip().splitlines()[-1]}")
        else:
            ready.append(peer)
    return ready, missing


def run_peer(peer: Peer, file: Path, runs: int) -> list[Decoded]:
    """The processor time of each of the peer's decoders for the file, in every run."""
    done = subprocess.run(
        [str(peer.program), str(file), str(runs)],
        env={**os.environ, "GOMAXPROCS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [Decoded(row["decoder"], row["messages"], tuple(row["seconds"])) for row in json.loads(done.stdout)]

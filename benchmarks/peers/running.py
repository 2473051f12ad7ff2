"""Builds the peers with the tools of their languages, and has them decode a file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.corpora import BUILD

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Peer:
    """build: a command to be run in `folder`; program: what it makes."""

    language: str
    tool: str
    folder: Path
    build: tuple[str, ...]
    program: Path


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a peer says of itself."""

    decoder: str
    messages: int
    seconds: tuple[float, ...]


_GO, _RUST = BUILD / "peers/go", BUILD / "peers/rust"
PEERS = (
    Peer("Go", "go", _HERE / "go", ("go", "build", "-o", str(_GO), "."), _GO),
    Peer(
        "Rust",
        "cargo",
        _HERE / "rust",
        ("cargo", "build", "--release", "--locked", "--quiet", "--target-dir", str(_RUST)),
        _RUST / "release/peers",
    ),
)


def built_peers(progress: Callable[[str], None]) -> tuple[list[Peer], list[str]]:
    """Those that can run here, and why others can't."""
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
    """Seconds of processor time that each of its decoders took for the file, every run of it."""
    ran = subprocess.run(
        [str(peer.program), str(file), str(runs)],
        env={**os.environ, "GOMAXPROCS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [Decoded(of["decoder"], of["messages"], tuple(of["seconds"])) for of in json.loads(ran.stdout)]

"""Real archives, each replayed once per process. Tests must not change the replays."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pgoutput_etl.replay.mirror import Replay
from tests.support.captures import files_of


@cache
def replay_of(*files: Path) -> Replay:
    replay = Replay()
    for path in files:
        replay.add_file(str(path), path.read_bytes())
    return replay


def replay_of_slot(slot: Path) -> Replay:
    return replay_of(*files_of(slot))

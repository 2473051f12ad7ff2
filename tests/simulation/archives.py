"""Small archives of a model server, and what the tables have to be after any number of their messages."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Begin, Commit, StreamStart
from pgoutput_etl.replay.mirror import Replay
from tests.support import encoder
from tests.support.model.history import random_history, random_options
from tests.support.model.receiver import TwoPhase
from tests.support.model.slot import Streaming

ARCHIVES = 400

Rows = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Expected:
    """After the commit at `lsn`. tables: sorted rows by OID; None for a table whose history can't be interpreted."""

    lsn: int
    tables: Mapping[int, Rows | None]
    names: Mapping[tuple[str, str], int]


@dataclass(eq=False, slots=True)
class Archive:
    """frames: the messages in order, as they are landed. starts: where the server may begin again after a reconnect, if
    it sends each transaction whole; empty otherwise."""

    frames: list[bytes]
    starts: list[int]
    _expected: dict[int, Expected] = field(default_factory=dict)

    def expected(self, count: int) -> Expected:
        """After the first `count` messages."""
        if count not in self._expected:
            self._expected[count] = _expected(b"".join(self.frames[:count]))
        return self._expected[count]


def _expected(content: bytes) -> Expected:
    replay = Replay()
    replay.add_file("archive", content)
    tables: dict[int, Rows | None] = {}
    for oid, rows in replay.rows_by_relation().items():
        try:
            tables[oid] = tuple(sorted(repr(row) for row in replay.table(oid, rows).rows))
        except TableError:
            tables[oid] = None
    return Expected(replay.assembly.last_commit_lsn, tables, replay.name_holders())


@cache
def archive(number: int) -> Archive:
    chance = random.Random(f"archive {number}")
    options = replace(random_options(chance), messages=False, actions=chance.choice((6, 12, 20, 30)))
    if chance.random() < 0.5:
        options = replace(options, streaming=Streaming.OFF, two_phase=TwoPhase.OFF, connections=1)
    messages = random_history(chance, options).messages
    rows = (encoder.Row(0x1000000 + i, 0, encoder.encode(m)) for i, m in enumerate(messages))
    frames = [encoder.copydata([row]) for row in rows]
    is_plain = not any(isinstance(m, StreamStart) for m in messages) and options.connections == 1
    is_plain = is_plain and options.two_phase is TwoPhase.OFF
    starts = [i for i, m in enumerate(messages) if isinstance(m, Begin) and (not i or isinstance(messages[i - 1], Commit))]
    return Archive(frames, starts if is_plain else []) if frames else archive(number + ARCHIVES)

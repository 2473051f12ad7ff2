"""Counts messages that produce no row: Origin, logical decoding Message, and Stream Abort."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import stands_in_stream
from pgoutput_etl.protocol.messages import Message, Origin, PgoutputMessage, StreamAbort

CENSUS_TAGS = frozenset("MOA")

_MOST_NAMES = 10_000  # prefixes, and origins; any more are counted as OTHERS
OTHERS = "(others)"


@dataclass(slots=True)
class PrefixCounts:
    """Logical decoding Messages with one prefix; size: total bytes of content."""

    transactional: int = 0
    non_transactional: int = 0
    size: int = 0

    def merge(self, other: PrefixCounts) -> None:
        self.transactional += other.transactional
        self.non_transactional += other.non_transactional
        self.size += other.size


@dataclass(slots=True)
class MessageCensus:
    """origins: number of transactions by origin. is_parallel: a Stream Abort has an LSN and a time."""

    origins: Counter[str] = field(default_factory=Counter)
    prefixes: dict[str, PrefixCounts] = field(default_factory=dict)
    is_parallel: bool = False

    def add(self, message: PgoutputMessage) -> None:
        match message:
            case Origin():
                is_named = message.name in self.origins or len(self.origins) < _MOST_NAMES
                self.origins[message.name if is_named else OTHERS] += 1
            case Message():
                count = PrefixCounts(int(message.transactional), int(not message.transactional), len(message.content))
                self._count(message.prefix, count)
            case StreamAbort():
                self.is_parallel |= message.abort_lsn is not None
            case _:
                pass

    def add_all(self, bodies: Iterable[bytes], in_stream: bool) -> None:
        """Counts valid messages that follow one another."""
        for body in bodies:
            if chr(body[0]) in CENSUS_TAGS:
                self.add(decode(body, in_stream))
            in_stream = stands_in_stream(body[0], in_stream)

    def merge(self, other: MessageCensus) -> None:
        self.origins.update(other.origins)
        for prefix, count in other.prefixes.items():
            self._count(prefix, count)
        self.is_parallel |= other.is_parallel

    def _count(self, prefix: str, count: PrefixCounts) -> None:
        is_named = prefix in self.prefixes or len(self.prefixes) < _MOST_NAMES
        self.prefixes.setdefault(prefix if is_named else OTHERS, PrefixCounts()).merge(count)

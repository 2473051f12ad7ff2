"""A replication slot, and the connections in which a receiver reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class Streaming(Enum):
    OFF = "off"
    ON = "on"
    PARALLEL = "parallel"


@dataclass(frozen=True, slots=True)
class Slot:
    """The settings of all connections. version: PostgreSQL's major version. messages: send logical decoding Messages.
    publishes_origins: send transactions that came from another server. evicts_prepared: the memory limit may stream a
    transaction whose Prepare an earlier connection sent; only its Commit Prepared follows."""

    version: int
    streaming: Streaming = Streaming.OFF
    messages: bool = True
    publishes_origins: bool = True
    evicts_prepared: bool = True


IMMEDIATE = -1


class Eviction(NamedTuple):
    """The memory limit is reached at a record. victim: the index of the transaction to stream, modulo their number;
    IMMEDIATE: the record's own transaction, as with debug_logical_replication_streaming. changes: the number of changes
    of an aborted transaction that are sent before the server notices the abort."""

    victim: int
    changes: int = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """begins_at: records before this LSN are not sent. two_phase_at: the LSN at which the slot's two-phase decoding was
    switched on; None if it is off. lags: the server already knows which transactions abort when it decodes their
    changes. evictions: by the LSN of a record. early_invalidations: LSNs of records at which the server heard of
    catalog changes ahead of the WAL. ends_at: the record at which the connection ends, after `ends_after` of its
    messages; None if it does not end.
    """

    begins_at: int = 0
    two_phase_at: int | None = None
    lags: bool = False
    evictions: Mapping[int, Eviction] = field(default_factory=dict)
    early_invalidations: frozenset[int] = frozenset()
    ends_at: int | None = None
    ends_after: int = 0

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
    """The settings of all connections. version: PostgreSQL's. messages: send logical decoding Messages.
    publishes_origins: send transactions that came from another server. evicts_prepared: a transaction whose Prepare was
    sent in an earlier connection may be streamed all the same, for want of memory; only its Commit Prepared follows."""

    version: int
    streaming: Streaming = Streaming.OFF
    messages: bool = True
    publishes_origins: bool = True
    evicts_prepared: bool = True


IMMEDIATE = -1


class Eviction(NamedTuple):
    """The memory limit is reached at some record. victim: which of the open transactions has to go; IMMEDIATE: the one
    that the record is about, as with debug_logical_replication_streaming. changes: how many of its changes are sent
    before the server notices that the transaction is aborted, if it is."""

    victim: int
    changes: int = 0


@dataclass(frozen=True, slots=True)
class Connection:
    """begins_at: records before this LSN are not sent. two_phase_at: where the slot's two-phase decoding was switched
    on; None where it is off. lags: the server knows how transactions ended long before their end is decoded. evictions:
    by the LSN of a record. early_invalidations: LSNs of records at which the server heard of changes of the catalog
    ahead of the WAL. ends_at, ends_after: the connection ends at this record after so many messages that it causes;
    None for one that lasts.
    """

    begins_at: int = 0
    two_phase_at: int | None = None
    lags: bool = False
    evictions: Mapping[int, Eviction] = field(default_factory=dict)
    early_invalidations: frozenset[int] = frozenset()
    ends_at: int | None = None
    ends_after: int = 0

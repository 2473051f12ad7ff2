"""A random history: statements on a model server, the messages that a receiver landed, and the truth."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    PgoutputMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamStart,
)
from tests.support.model.catalog import Name, Publication
from tests.support.model.catalog_triggers import CatalogTriggers
from tests.support.model.receiver import TwoPhase, divided, random_connections
from tests.support.model.server import FIRST_NORMAL_XID, XIDS, Server
from tests.support.model.slot import Connection, Slot, Streaming
from tests.support.model.truth import Table, Truth
from tests.support.model.wal import Abort
from tests.support.model.walsender import Walsender
from tests.support.model.weights import PUBLISHED
from tests.support.model.workload import Action, Workload

Messages = list[PgoutputMessage]
Night = list[Messages]


@dataclass(frozen=True, slots=True)
class Options:
    """server_version: PostgreSQL's major version, 10 to 18. actions, connections: their numbers. weights: override
    those of workload.py, by kind. key_types: letters of the types that key columns can have. origins: the share of
    transactions from another server. catalog: the numbers of the statements that send catalog Messages. for_tables: the
    publication lists its tables, and may list others later.
    """

    server_version: int = 18
    protocol: int = 4
    streaming: Streaming = Streaming.OFF
    two_phase: TwoPhase = TwoPhase.OFF
    messages: bool = True
    publishes_origins: bool = True
    evicts_prepared: bool = True
    for_tables: bool = False
    actions: int = 60
    connections: int = 3
    evictions: float = 0.15
    origins: float = 0.1
    catalog: range = range(0)
    key_types: str = "ibtnzm"
    weights: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        first_with = {1: 10, 2: 14, 3: 15, 4: 16}[self.protocol]
        assert first_with <= self.server_version <= 18
        assert self.streaming is Streaming.OFF or self.protocol >= 2
        assert self.streaming is not Streaming.PARALLEL or self.protocol >= 4
        assert self.two_phase is TwoPhase.OFF or self.protocol >= 3
        assert self.publishes_origins or self.server_version >= 16
        assert not self.messages or self.server_version >= 14

    @property
    def slot(self) -> Slot:
        return Slot(self.server_version, self.streaming, self.messages, self.publishes_origins, self.evicts_prepared)


@dataclass(frozen=True)
class History:
    """actions: the statements that PostgreSQL ran, each with its number. first_xid: the server's next one, then."""

    options: Options
    first_xid: int
    actions: Sequence[tuple[int, Action]]
    connections: Sequence[Connection]

    @cached_property
    def server(self) -> Server:
        server = new_server(self.options, self.first_xid)
        for number, action in self.actions:
            server.begin_statement(number)
            action.statement.run(server, action.session)
        return server

    @cached_property
    def messages(self) -> Messages:
        """The landed messages of all connections, in order."""
        wal = self.server.wal
        aborted = frozenset(record.top for record in wal if isinstance(record, Abort) and record.xid == record.top)
        sent: Messages = []
        for connection in self.connections:
            sent += Walsender(self.options.slot, connection, aborted).run(wal)
        return sent

    def nights(self, chance: random.Random) -> list[Night]:
        """Nights of files of messages, cut anywhere."""
        return divided(chance, divided(chance, self.messages, most=8), most=4)

    @cached_property
    def unfinished(self) -> set[int]:
        """The xids of transactions that the messages begin but do not end."""
        open_xids: set[int] = set()
        current = 0
        for message in self.messages:
            match message:
                case Begin(xid=xid) | BeginPrepare(xid=xid) | StreamStart(xid=xid):
                    current = xid
                    open_xids.add(xid)
                case Commit():
                    open_xids.discard(current)
                case StreamCommit(xid=xid) | CommitPrepared(xid=xid) | RollbackPrepared(xid=xid):
                    open_xids.discard(xid)
                case StreamAbort(xid=xid, subxid=subxid) if xid == subxid:
                    open_xids.discard(xid)
                case _:
                    pass
        return open_xids

    @cached_property
    def truth(self) -> Truth:
        return Truth(self.server.commits)

    @property
    def commit_lsns(self) -> list[int]:
        return [lsn for lsn, _ in self.server.commits]

    def tables_at(self, lsn: int) -> dict[int, Table]:
        """The server's tables by OID after the commit at this LSN."""
        return self.truth.tables_at(lsn)

    def archived_at(self, lsn: int) -> dict[int, Table]:
        """The tables by OID as an archive knows them after the commit at this LSN; see truth.py."""
        return self.truth.archived_at(lsn)

    def names_at(self, lsn: int) -> dict[int, Name]:
        return self.truth.names_at(lsn)

    def holders_at(self, lsn: int) -> dict[Name, int]:
        return self.truth.holders_at(lsn)


def new_server(options: Options, first_xid: int) -> Server:
    publication = Publication(tables={}) if options.for_tables else Publication()
    server = Server(options.server_version, publication, first_xid, options.publishes_origins)
    server.triggers = CatalogTriggers(options.catalog) if options.catalog else None
    return server


def random_history(chance: random.Random, options: Options) -> History:
    first_xid = chance.choice((700, XIDS - 1 - chance.randrange(30), FIRST_NORMAL_XID + (1 << 31) - 9))
    server = new_server(options, first_xid)
    workload = Workload(chance, server, options.weights, options.key_types, options.origins)
    actions = list(enumerate(workload.run(options.actions), 1))
    connections = random_connections(chance, server.wal, options.connections, options.two_phase, options.evictions)
    history = History(options, first_xid, actions, connections)
    history.__dict__["server"] = server  # which has run these actions already
    return history


def random_options(chance: random.Random) -> Options:
    """Options that go together."""
    version = chance.choice((10, 11, 13, 14, 15, 16, 17, 18, 18, 18))
    protocol = chance.choice([p for p, first in ((1, 10), (2, 14), (3, 15), (4, 16)) if first <= version])
    streamings = [Streaming.OFF, *([Streaming.ON] * 2 * (protocol >= 2)), *([Streaming.PARALLEL] * 2 * (protocol >= 4))]
    return Options(
        server_version=version,
        protocol=protocol,
        streaming=chance.choice(streamings),
        two_phase=chance.choice(list(TwoPhase)) if protocol >= 3 else TwoPhase.OFF,
        messages=version >= 14 and chance.random() < 0.8,
        publishes_origins=version < 16 or chance.random() < 0.8,
        for_tables=chance.random() < 0.4,
        actions=chance.choice((40, 80, 120, 200)),
        connections=chance.choice((1, 2, 3, 5)),
        weights=PUBLISHED if chance.random() < 0.6 else {},
    )

"""Random statements in several sessions, run on the model server one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from pgoutput_etl.protocol.messages import ReplicaIdentity
from tests.support.model import ddl, dml
from tests.support.model import statements as do
from tests.support.model.catalog import ALL_OPERATIONS, INSERT, Value
from tests.support.model.server import Server, Table
from tests.support.model.values import VALUES, random_key, random_value
from tests.support.model.weights import IN_TRANSACTION, OUTSIDE, Weights

_MOST_TABLES, _MOST_COLUMNS = 4, 6
ORIGIN = "elsewhere"


class Action(NamedTuple):
    session: int
    statement: RunsOnServer


class RunsOnServer(Protocol):
    def run(self, server: Server, session: int) -> bool: ...


def _origin(session: int) -> str:
    """Only one session at a time can have a replication origin."""
    return f"{ORIGIN} {session}"


class Workload:
    def __init__(
        self,
        chance: random.Random,
        server: Server,
        weights: Mapping[str, int],
        key_types: str = "ibtnzm",
        origins: float = 0.1,
    ) -> None:
        self.chance, self.server = chance, server
        self.key_types, self.origins = key_types, origins
        self.actions: list[Action] = []
        self._in_transaction = Weights({kind: weights.get(kind, n) for kind, n in IN_TRANSACTION.items()})
        self._outside = Weights({kind: weights.get(kind, n) for kind, n in OUTSIDE.items()})
        self._next_oid, self._next_name = 16384, 0

    def run(self, count: int) -> list[Action]:
        """About `count` actions, after those that create the first tables."""
        self._do(0, do.Begin())
        for _ in range(2):
            self._create_table(0)
        self._do(0, do.Commit())
        for _ in range(4 * count):
            if len(self.actions) >= count:
                break
            session = int(self.chance.random() * len(self.server.sessions))
            self._step(session)
        return self.actions

    def _do(self, session: int, statement: RunsOnServer) -> bool:
        transaction = self.server.sessions[session]
        locks = 0 if transaction is None else len(transaction.locks)
        self.server.begin_statement(len(self.actions) + 1)
        if not statement.run(self.server, session):
            if transaction is not None:
                self.server.unlock(transaction, locks)
            return False
        self.actions.append(Action(session, statement))
        return True

    def _step(self, session: int) -> None:
        transaction = self.server.sessions[session]
        kind = (self._outside if transaction is None else self._in_transaction).draw(self.chance)
        getattr(self, f"_{kind}")(session)

    # Transactions

    def _begin(self, session: int) -> None:
        is_foreign = self.chance.random() < self.origins
        origin_lsn = 0x500000 + len(self.actions)
        self._do(session, do.Begin(_origin(session), origin_lsn) if is_foreign else do.Begin())

    def _commit(self, session: int) -> None:
        self._do(session, do.Commit())

    def _roll_back(self, session: int) -> None:
        self._do(session, do.RollBack())

    def _prepare(self, session: int) -> None:
        self._do(session, do.PrepareTransaction(f"gid {len(self.actions)}"))

    def _prepare_empty(self, session: int) -> None:
        """A transaction with an xid and nothing to decode."""
        row = self._row()
        if row is not None and self._do(session, do.Begin()) and self._do(session, dml.LockRow(*row)):
            self._prepare(session)

    def _commit_prepared(self, session: int) -> None:
        if self.server.prepared:
            self._do(session, do.CommitPrepared(*self._some_prepared(session)))

    def _roll_back_prepared(self, session: int) -> None:
        if self.server.prepared:
            self._do(session, do.RollBackPrepared(*self._some_prepared(session)))

    def _some_prepared(self, session: int) -> tuple[str, str | None]:
        gid = self.chance.choice(list(self.server.prepared))
        is_foreign = self.server.prepared[gid].origin is not None and self.chance.random() < 0.7
        return gid, _origin(session) if is_foreign else None

    def _savepoint(self, session: int) -> None:
        self._do(session, do.Savepoint())

    def _depth(self, session: int) -> int:
        transaction = self.server.sessions[session]
        assert transaction is not None
        return int(self.chance.random() * len(transaction.stack))

    def _release(self, session: int) -> None:
        self._do(session, do.ReleaseSavepoint(self._depth(session)))

    def _roll_back_to(self, session: int) -> None:
        self._do(session, do.RollBackToSavepoint(self._depth(session)))

    def _crash(self, session: int) -> None:
        self._do(session, do.Crash())

    def _message(self, session: int) -> None:
        content = str(len(self.actions)).encode()
        self._do(session, do.EmitMessage(self.chance.random() < 0.6, "prefix", content))

    # Rows

    def _table(self) -> Table | None:
        tables = list(self.server.tables.values())
        return self.chance.choice(tables) if tables else None

    def _row(self) -> tuple[int, int] | None:
        table = self._table()
        if table is None or not table.rows:
            return None
        return table.definition.oid, self.chance.choice(list(table.rows))

    def _value(self, name: str, in_key: bool) -> Value:
        return (random_key if in_key else random_value)(self.chance, name[0])

    def _insert(self, session: int) -> None:
        table = self._table()
        if table is None:
            return
        definition = table.definition
        keys = (*definition.key, *definition.index)
        values = tuple((c.name, self._value(c.name, c.number in keys)) for c in definition.columns)
        self._do(session, dml.InsertRow(definition.oid, values))

    def _update(self, session: int) -> None:
        row_id = self._row()
        if row_id is None:
            return
        oid, row = row_id
        definition = self.server.tables[oid].definition
        keys = (*definition.key, *definition.index)
        draw = self.chance.random
        moves = draw() < 0.25
        values = tuple(
            (c.name, self._value(c.name, c.number in keys))
            for c in definition.columns
            if draw() < 0.5 and (moves or c.number not in keys)
        )
        self._do(session, dml.UpdateRow(oid, row, values))

    def _delete(self, session: int) -> None:
        row_id = self._row()
        if row_id is not None:
            self._do(session, dml.DeleteRow(*row_id))

    def _lock_row(self, session: int) -> None:
        row_id = self._row()
        if row_id is not None:
            self._do(session, dml.LockRow(*row_id))

    def _truncate(self, session: int) -> None:
        oids = list(self.server.tables)
        if oids:
            some = self.chance.sample(oids, self.chance.randint(1, min(2, len(oids))))
            self._do(session, dml.Truncate(tuple(some), self.chance.randrange(4)))

    # Tables

    def _name(self, letter: str) -> str:
        self._next_name += 1
        return f"{letter}{self._next_name}"

    def _create_table(self, session: int, name: tuple[str, str] | None = None) -> bool:
        if len(self.server.tables) >= _MOST_TABLES:
            return False
        oid = self._next_oid
        self._next_oid += 1
        letters = [self.chance.choice(self.key_types), *self.chance.choices("ibtnzam", k=self.chance.randint(1, 3))]
        columns = tuple((self._name(letter), VALUES[letter][0]) for letter in letters)
        key = (columns[0][0],) if self.chance.random() < 0.9 else ()
        name = name or ("public", self._name("table"))
        if not self._do(session, ddl.CreateTable(oid, *name, columns, key)):
            return False
        if self.server.publication.tables is not None:
            self._do(session, ddl.PublishTable(oid))
        if not key:
            self._do(session, ddl.SetIdentity(oid, ReplicaIdentity.FULL))
        return True

    def _on_table(self, session: int, statement: Callable[[Table], RunsOnServer | None]) -> None:
        table = self._table()
        new_statement = None if table is None else statement(table)
        if new_statement is not None:
            self._do(session, new_statement)

    def _drop_table(self, session: int) -> None:
        self._on_table(session, lambda table: ddl.DropTable(table.definition.oid))

    def _replace_table(self, session: int) -> None:
        table = self._table()
        if table is not None and self._do(session, ddl.DropTable(table.definition.oid)):
            self._create_table(session, (table.definition.namespace, table.definition.name))

    def _rename_table(self, session: int) -> None:
        def rename(table: Table) -> RunsOnServer:
            before = table.definition
            name = before.name if self.chance.random() < 0.2 else self._name("table")
            # A name can be used again, also by another table.
            name = self.chance.choice([name, f"table{self.chance.randint(1, 20)}"])
            namespace = self.chance.choice(["public", "public", "other"])
            return ddl.RenameTable(before.oid, namespace, name)

        self._on_table(session, rename)

    def _swap_tables(self, session: int) -> None:
        if len(self.server.tables) < 2:
            return
        one, other = (table.definition for table in self.chance.sample(list(self.server.tables.values()), 2))
        steps = (
            ddl.RenameTable(one.oid, one.namespace, "between"),
            ddl.RenameTable(other.oid, one.namespace, one.name),
            ddl.RenameTable(one.oid, other.namespace, other.name),
        )
        for step in steps:
            if not self._do(session, step):
                return

    # Columns and keys

    def _column_name(self, table: Table) -> str:
        return self.chance.choice(table.definition.columns).name

    def _add_column(self, session: int) -> None:
        self._on_table(session, lambda table: self._added(table, None))

    def _add_default(self, session: int) -> None:
        self._on_table(session, lambda table: self._added(table, b""))

    def _added(self, table: Table, default: Value) -> RunsOnServer | None:
        if len(table.definition.columns) >= _MOST_COLUMNS:
            return None
        letter = self.chance.choice("ibtnzam")
        type_oid, values = VALUES[letter]
        value = None if default is None else self.chance.choice(values)
        return ddl.AddColumn(table.definition.oid, self._name(letter), type_oid, value)

    def _drop_column(self, session: int) -> None:
        self._on_table(session, lambda table: ddl.DropColumn(table.definition.oid, self._column_name(table)))

    def _rename_column(self, session: int) -> None:
        def rename(table: Table) -> RunsOnServer:
            name = self._column_name(table)
            return ddl.RenameColumn(table.definition.oid, name, self._name(name[0]))

        self._on_table(session, rename)

    def _retype_column(self, session: int) -> None:
        def retype(table: Table) -> RunsOnServer | None:
            column = self.chance.choice(table.definition.columns)
            types = ddl.RETYPES.get(column.type_oid)
            if types is None:
                return None
            return ddl.RetypeColumn(table.definition.oid, column.name, self.chance.choice(types))

        self._on_table(session, retype)

    def _some_columns(self, table: Table) -> tuple[str, ...]:
        names = [column.name for column in table.definition.columns if column.name[0] in self.key_types]
        return tuple(self.chance.sample(names, self.chance.randint(1, min(2, len(names))))) if names else ()

    def _set_key(self, session: int) -> None:
        self._on_table(session, lambda table: ddl.SetKey(table.definition.oid, self._some_columns(table)))

    def _set_identity(self, session: int) -> None:
        def set_identity(table: Table) -> RunsOnServer:
            identity = self.chance.choice(list(ReplicaIdentity))
            index = self._some_columns(table) if identity is ReplicaIdentity.INDEX else ()
            return ddl.SetIdentity(table.definition.oid, identity, index)

        self._on_table(session, set_identity)

    # The publication

    def _publish_table(self, session: int) -> None:
        self._on_table(session, lambda table: ddl.PublishTable(table.definition.oid))

    def _list_columns(self, session: int) -> None:
        def publish(table: Table) -> RunsOnServer:
            """With the columns of the replica identity; PostgreSQL would refuse UPDATE and DELETE without them."""
            definition = table.definition
            names = {c.name for c in definition.columns if c.number in definition.identity_numbers}
            some = self.chance.sample(definition.columns, self.chance.randint(1, len(definition.columns)))
            listed = names | {column.name for column in some}
            return ddl.PublishTable(definition.oid, tuple(name for name in definition.places if name in listed))

        self._on_table(session, publish)

    def _unpublish_table(self, session: int) -> None:
        self._on_table(session, lambda table: ddl.UnpublishTable(table.definition.oid))

    def _set_operations(self, session: int) -> None:
        dropped = self.chance.choice([frozenset[str](), frozenset(self.chance.sample("UDT", 1)), frozenset("UDT")])
        self._do(session, ddl.SetOperations(ALL_OPERATIONS - dropped | {INSERT}))

"""A table on a real server with random changes of its columns, key, name, and rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg
from psycopg import sql

# By type: values in SQL, and the types to which ALTER TABLE … TYPE converts it without loss.
VALUES = {
    "int": ["0", "1", "-2147483648", "2147483647", "null"],
    "bigint": ["0", "-9223372036854775808", "42", "null"],
    "numeric(12,2)": ["0", "-1.50", "9999999999.99", "'NaN'", "null"],
    "numeric(20,4)": ["0.0001", "-7", "null"],
    "numeric": ["1e40", "0.10", "'NaN'", "null"],
    "text": ["''", "'a'", "'it''s \\ \"quoted\"'", "'ünï'", "null"],
    "varchar(12)": ["'abc'", "''", "null"],
    "bool": ["true", "false", "null"],
    "date": ["'2024-02-29'", "'infinity'", "'0044-03-15 BC'", "null"],
    "timestamp": ["'2024-02-29 12:34:56.789'", "'-infinity'", "null"],
    "timestamptz": ["'2024-02-29 12:34:56.789+02'", "'infinity'", "null"],
    "bytea": ["'\\x00ff'", "''", "null"],
    "float8": ["0.1", "'-0'", "1e300", "null"],
    "int[]": ["'{1,NULL,3}'", "'{}'", "'{{1,2},{3,4}}'", "null"],
}
RETYPES = {
    "int": ["bigint", "numeric(12,2)", "numeric", "text"],
    "bigint": ["numeric", "text"],
    "numeric(12,2)": ["numeric", "text"],
    "varchar(12)": ["text"],
    "bool": ["text"],
    "date": ["timestamp", "text"],
}


@dataclass(slots=True)
class SchemaHistory:
    """declared: the lineage of columns that is ambiguous in the archive, as a configuration declares it."""

    connection: psycopg.Connection[tuple[object, ...]]
    chance: random.Random
    schema: str = "public"
    name: str = "t"
    columns: dict[str, str] = field(default_factory=dict)
    id: str = "id"
    key: tuple[str, ...] = ("id",)
    full: bool = False
    declared: dict[str, str | None] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    used: int = 0
    next_id: int = 0

    def create(self) -> None:
        self.columns = {"id": "int", "alt": "int"}
        self.id, self.key, self.full = "id", ("id",), False
        self.execute("create table <t> (id int primary key, alt int not null)")
        for _ in range(3):
            self.add_column()
        self.rows()

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def execute(self, statement: str) -> None:
        table = sql.Identifier(self.schema, self.name).as_string()
        self.log.append(statement.replace("<t>", table))
        self.connection.execute(self.log[-1].encode())

    def step(self) -> None:
        """One random change, and rows after it."""
        steps: list[Callable[[], None]] = [
            *([self.add_column] * 3),
            *([self.rename_column] * 3),
            *([self.retype_column] * 3),
            *([self.drop_column] * 2),
            self.change_key,
            self.change_nullability,
            self.rename_table,
            self.replace_table,
            self.add_with_default,
            self.add_again,
            self.truncate,
        ]
        step = self.chance.choice(steps)
        match self.chance.randrange(4):
            case 0:  # in the middle of a transaction, perhaps a streamed one
                with self.connection.transaction():
                    self.rows(self.chance.choice([2, 400]))
                    step()
                    self.rows()
            case 1:  # after a change that is rolled back
                self.roll_back_a_change()
                step()
            case _:
                step()
        self.rows()

    def rows(self, count: int = 3) -> None:
        for _ in range(count):
            self.next_id += 1
            self.insert(self.next_id)
        self.execute(f"update <t> set alt = alt where {self.quoted(self.key[0])} % 5 = {self.chance.randrange(5)}")
        self.execute(f"delete from <t> where {self.quoted(self.key[0])} % 13 = {self.chance.randrange(13)}")
        if self.chance.random() < 0.3:
            self.execute(f"update <t> set {self.quoted(self.key[0])} = -{self.quoted(self.key[0])} where alt % 11 = 3")

    def insert(self, number: int) -> None:
        values = [
            str(number) if name in (self.id, "alt") else self.chance.choice(VALUES[kind])
            for name, kind in self.columns.items()
        ]
        names = ", ".join(self.quoted(name) for name in self.columns)
        self.execute(f"insert into <t> ({names}) values ({', '.join(values)})")

    def quoted(self, name: str) -> str:
        return sql.Identifier(name).as_string()

    def new_name(self) -> str:
        self.used += 1
        return self.chance.choice(["c{}", "C{}", "c {}", "c.{}", 'q"{}', "`{}", "ü{}"]).format(self.used)

    def others(self) -> list[str]:
        return [name for name in self.columns if name not in (self.id, "alt")]

    def add_column(self) -> None:
        name, kind = self.new_name(), self.chance.choice(list(VALUES))
        self.execute(f"alter table <t> add {self.quoted(name)} {kind}")
        self.columns[name] = kind

    def add_with_default(self) -> None:
        """Old rows' default values are sent when the rows are updated, which requires a key to identify them."""
        if self.full:
            return
        name, kind = self.new_name(), self.chance.choice(["int", "text", "date"])
        default = self.chance.choice(VALUES[kind])
        self.execute(f"alter table <t> add {self.quoted(name)} {kind} default {default}")
        self.columns[name] = kind
        self.execute("update <t> set alt = alt")

    def add_again(self) -> None:
        """Adds a column with the name of a dropped one, and another type, which alone reveals the difference."""
        if not self.others():
            return
        name = self.chance.choice(self.others())
        kind = self.chance.choice([kind for kind in VALUES if kind != self.columns[name]])
        self.execute(f"alter table <t> drop {self.quoted(name)}")
        del self.columns[name]
        self.rows(1)
        self.execute(f"alter table <t> add {self.quoted(name)} {kind}")
        self.columns[name] = kind

    def drop_column(self) -> None:
        if self.others():
            name = self.chance.choice(self.others())
            self.execute(f"alter table <t> drop {self.quoted(name)}")
            del self.columns[name]

    def rename_column(self) -> None:
        old = self.chance.choice(list(self.columns))
        if old == "alt":
            return
        new = self.new_name()
        self.execute(f"alter table <t> rename {self.quoted(old)} to {self.quoted(new)}")
        if old == list(self.columns)[-1]:
            self.declared[new] = old
        self.columns = {new if name == old else name: kind for name, kind in self.columns.items()}
        self.key = tuple(new if name == old else name for name in self.key)
        self.id = new if self.id == old else self.id

    def retype_column(self) -> None:
        names = [name for name in self.others() if self.columns[name] in RETYPES]
        if not names:
            return
        name = self.chance.choice(names)
        self.columns[name] = self.chance.choice(RETYPES[self.columns[name]])
        self.execute(f"alter table <t> alter {self.quoted(name)} type {self.columns[name]}")

    def change_key(self) -> None:
        self.execute(f"update <t> set alt = {self.quoted(self.id)}")  # unique again, and sent for every row
        self.key = self.chance.choice([(self.id,), ("alt",), (self.id, "alt")])
        keys = ", ".join(self.quoted(name) for name in self.key)
        constraint = self.connection.execute(
            "select conname from pg_constraint where conrelid = %s::regclass and contype = 'p'",
            (sql.Identifier(self.schema, self.name).as_string(),),
        ).fetchone()
        assert constraint is not None
        self.execute(f"alter table <t> drop constraint {self.quoted(str(constraint[0]))}")
        self.execute(f"alter table <t> add primary key ({keys})")
        self.full = self.chance.random() < 0.3
        self.execute(f"alter table <t> replica identity {'full' if self.full else 'default'}")

    def change_nullability(self) -> None:
        if "alt" not in self.key:
            self.execute("alter table <t> alter alt drop not null")
            self.rows(1)
            self.execute("alter table <t> alter alt set not null")

    def rename_table(self) -> None:
        new = f"renamed {self.new_name()} of {self.name[:20]}"
        self.execute(f"alter table <t> rename to {self.quoted(new)}")
        self.name = new
        if self.chance.random() < 0.5:
            schema = "other" if self.schema == "public" else "public"
            self.execute(f"alter table <t> set schema {schema}")
            self.schema = schema

    def replace_table(self) -> None:
        self.execute("drop table <t>")
        self.create()

    def truncate(self) -> None:
        self.execute("truncate <t>")

    def roll_back_a_change(self) -> None:
        """Rolls back rows and a change, either a savepoint or the whole transaction."""
        state = (dict(self.columns), self.id, self.key, self.full, self.schema, self.name, dict(self.declared))
        with self.connection.transaction(force_rollback=self.chance.random() < 0.5):
            self.rows(self.chance.choice([1, 300]))
            with self.connection.transaction(force_rollback=True):
                self.chance.choice([self.add_column, self.drop_column, self.retype_column])()
                self.rows(300)
            self.columns, self.id, self.key, self.full, self.schema, self.name, self.declared = state
            self.rows(2)

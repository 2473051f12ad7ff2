"""A table with random changes that an archive shows only with catalog Messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.support.servers.schema_history import RETYPES, VALUES, SchemaHistory

_LABELS = 3


@dataclass(slots=True)
class CatalogHistory(SchemaHistory):
    """labels: of the table's enum. types: what its types are named after. can_prepare: the slot sends prepared
    transactions."""

    labels: list[str] = field(default_factory=list)
    types: str = ""
    attributes: int = 0
    can_prepare: bool = False
    prepared: int = 0
    generated: list[str] = field(default_factory=list)

    def create(self) -> None:
        self.labels, self.types = [f"l{number}" for number in range(_LABELS)], self.name
        self.execute(f"create type {self.mood} as enum ({', '.join(map(repr, self.labels))})")
        self.execute(f"create domain {self.price} as numeric(10,2)")
        self.execute(f"create type {self.pair} as (n int, x text, p {self.price})")
        self.execute(f"create type {self.span} as range (subtype = {self.price})")
        SchemaHistory.create(self)

    @property
    def mood(self) -> str:
        return self.quoted(f"{self.types} mood")

    @property
    def pair(self) -> str:
        return self.quoted(f"{self.types} pair")

    @property
    def price(self) -> str:
        return self.quoted(f"{self.types} price")

    @property
    def span(self) -> str:
        return self.quoted(f"{self.types} span")

    def step(self) -> None:
        steps: list[Callable[[], None]] = [
            *([self.add_default] * 3),
            *([self.add_alike] * 2),
            *([self.rename_and_add] * 2),
            *([self.swap] * 2),
            *([self.rename_label] * 2),
            *(self.add_attribute, self.add_user_column, self.cast, self.rename_column, self.drop_column),
            *(self.rename_table, self.change_key, self.truncate, self.many, self.add_generated),
        ]
        with self._transaction():
            self.chance.choice(steps)()
        if self.chance.random() < 0.7:
            self.rows()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """A plain one, a streamed one, one with a rolled back part, or a prepared one."""
        kind = self.chance.randrange(8)
        if kind > 3:
            yield
            return
        if kind == 3:
            self._roll_back()
        self.execute("begin")
        if kind == 0:
            self.rows(400)
        if kind == 1:
            self.execute("savepoint s")
            self._changes_that_are_undone()
            self.execute("rollback to s")
        self.rows(1)
        yield
        self.rows(1)
        if kind == 2 and self.can_prepare:
            self.prepared += 1
            self.execute(f"prepare transaction '{self.name} {self.prepared}'")
            self.execute(f"commit prepared '{self.name} {self.prepared}'")
        else:
            self.execute("commit")

    def _roll_back(self) -> None:
        self.execute("begin")
        self._changes_that_are_undone()
        if self.can_prepare and self.chance.random() < 0.7:
            self.prepared += 1
            self.execute(f"prepare transaction '{self.name} {self.prepared}'")
            self.execute(f"rollback prepared '{self.name} {self.prepared}'")
        else:
            self.execute("rollback")

    def _changes_that_are_undone(self) -> None:
        """Names and types are the same afterwards, so that only the transaction tells the difference."""
        if self.chance.random() < 0.5:
            self.rows(300)
        last = [*self.columns][-1]
        if last in self.others():
            kind = self.columns[last]
            self.execute(f"alter table <t> drop {self.quoted(last)}, add {self.quoted(last)} {kind}")
        self.execute(f"alter table <t> add undone int default {self.chance.randrange(9)}")
        self.execute("update <t> set alt = alt where alt % 7 = 1")

    def insert(self, number: int) -> None:
        kinds = self.columns
        self.columns = {name: kind for name, kind in kinds.items() if kind in VALUES}
        SchemaHistory.insert(self, number)
        self.columns = kinds
        for name, kind in kinds.items():
            if kind == self.mood:
                value = self.chance.choice([*map(repr, self.labels), "null"])
            elif kind == f"{self.mood}[]":
                value = f"array['{self.labels[0]}', null, '{self.labels[-1]}']::{kind}"
            elif kind == self.pair:
                value = f"row({number}, 'a, \"b\"', {number}.5{', null' * self.attributes})::{kind}"
            elif kind in (self.price, f"{self.price}[]"):
                value = f"{number}.25" if kind == self.price else f"array[{number}.5, null]::{kind}"
            elif kind == self.span:
                value = f"{kind}({number}, null)"
            else:
                continue
            self.execute(f"update <t> set {self.quoted(name)} = {value} where {self.quoted(self.id)} = {number}")

    def add_default(self) -> None:
        name, kind = self.new_name(), self.chance.choice([*VALUES])
        self.execute(f"alter table <t> add {self.quoted(name)} {kind} default {self.chance.choice(VALUES[kind])}")
        self.columns[name] = kind

    def add_generated(self) -> None:
        """A column that is not sent, and is no column of the target: the server computes the values of all rows. Not
        under REPLICA IDENTITY FULL, where PostgreSQL 18 then refuses changes, and not where transactions are prepared:
        decoding of a prepared one that rewrites a table can fail on the server."""
        if not self.full and not self.can_prepare:
            self.generated.append(f"generated {len(self.generated)}")
            column = self.quoted(self.generated[-1])
            self.execute(f"alter table <t> add {column} int generated always as (length('seven')) stored")

    def change_key(self) -> None:
        while self.generated:
            self.execute(f"alter table <t> drop {self.quoted(self.generated.pop())}")
        SchemaHistory.change_key(self)

    def add_alike(self) -> None:
        """Another column with the name and type of a dropped one, of which no row tells."""
        if self.others():
            name = self.chance.choice(self.others())
            kind = self.columns.pop(name)
            default = self.chance.choice(VALUES.get(kind, ["null"]))
            self.execute(f"alter table <t> drop {self.quoted(name)}")
            self.execute(f"alter table <t> add {self.quoted(name)} {kind} default {default}")
            self.columns[name] = kind

    def rename_and_add(self) -> None:
        if self.others():
            name, other = self.chance.choice(self.others()), self.new_name()
            kind = self.columns[name]
            self.execute(f"alter table <t> rename {self.quoted(name)} to {self.quoted(other)}")
            self.columns = {other if old == name else old: of for old, of in self.columns.items()}
            self.execute(f"alter table <t> add {self.quoted(name)} {kind}")
            self.columns[name] = kind

    def swap(self) -> None:
        if len(self.others()) > 1:
            one, two = self.chance.sample(self.others(), 2)
            for old, new in ((one, "swapped"), (two, one), ("swapped", two)):
                self.execute(f"alter table <t> rename {self.quoted(old)} to {self.quoted(new)}")
            self.columns = {{one: two, two: one}.get(name, name): kind for name, kind in self.columns.items()}

    def cast(self) -> None:
        names = [name for name in self.others() if self.columns[name] in RETYPES]
        if names:
            name = self.chance.choice(names)
            kind = self.chance.choice(RETYPES[self.columns[name]])
            self.execute(f"alter table <t> alter {self.quoted(name)} type {kind}")
            self.columns[name] = kind

    def add_user_column(self) -> None:
        kinds = [self.mood, f"{self.mood}[]", self.pair, self.price, f"{self.price}[]", self.span]
        name, kind = self.new_name(), self.chance.choice(kinds)
        default = f" default '{self.labels[0]}'" if kind == self.mood else ""
        self.execute(f"alter table <t> add {self.quoted(name)} {kind}{default}")
        self.columns[name] = kind

    def rename_label(self) -> None:
        place, self.used = self.chance.randrange(len(self.labels)), self.used + 1
        label = f"l {self.used}"
        self.execute(f"alter type {self.mood} rename value '{self.labels[place]}' to '{label}'")
        self.labels[place] = label

    def add_attribute(self) -> None:
        self.attributes += 1
        self.execute(f"alter type {self.pair} add attribute a{self.attributes} int")

    def many(self) -> None:
        for _ in range(3):
            self.chance.choice([self.add_default, self.add_alike, self.swap, self.drop_column, self.rename_and_add])()

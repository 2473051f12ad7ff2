"""Random histories of the shapes that show least in an archive: partitions of mixed identity, a key that moves to
another column, and tables without a key whose values the server changes without sending them. Each table is right, or
named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.support.judged_targets import in_memory
from tests.support.servers.judged_database import judged_database
from tests.support.servers.postgres import Server, Version
from tests.support.verdicts import Verdict, judge

pytestmark = pytest.mark.e2e

NIGHTS, STEPS = 4, 5
LARGE = "(select string_agg(md5(i::text || random()), '') from generate_series(1, 300) i)"
SEEDS = [pytest.param(seed, marks=[pytest.mark.soak] * (seed > 1)) for seed in range(60)]


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    version: Version = request.param
    with Server(version) as running:
        yield running


@dataclass(slots=True)
class Partitions:
    """A root, with or without a key, whose partitions change their replica identities, and come and go."""

    random: Random
    root_has_key: bool
    partitions: list[str] = field(default_factory=list)
    rows: int = 0

    def create(self) -> Iterator[str]:
        key = ", primary key (id, region)" if self.root_has_key else ""
        yield (
            "create table root (id int not null, region text not null, code int not null, doc text, w text"
            f"{key}) partition by list (region)"
        )
        yield from self._partition()
        yield from self._partition()

    def _partition(self) -> Iterator[str]:
        name = f"p{len(self.partitions)}"
        self.partitions.append(name)
        if self.random.random() < 0.5:
            yield f"create table {name} partition of root for values in ('{name}')"
        else:
            yield f"create table {name} (w text, doc text, code int not null, region text not null, id int not null)"
            yield f"alter table root attach partition {name} for values in ('{name}')"
        yield f"alter table {name} alter doc set storage external"
        yield f"create unique index {name}_code on {name} (code)"
        if not self.root_has_key and self.random.random() < 0.7:
            yield f"alter table {name} add primary key (id)"
        else:
            yield f"alter table {name} replica identity full"
        yield from self._identity(name)

    def _identity(self, name: str) -> Iterator[str]:
        identities = ["full", f"using index {name}_code", *(["default"] if self.root_has_key else [])]
        if self.random.random() < 0.4:
            yield f"alter table {name} replica identity {self.random.choice(identities)}"

    def step(self) -> Iterator[str]:
        name, some = self.random.choice(self.partitions), f"id % 3 = {self.random.randrange(3)}"
        match self.random.randrange(9):
            case 0 | 1 | 2:
                for _ in range(self.random.randint(1, 4)):
                    self.rows += 1
                    doc = self.random.choice([LARGE, "'short'", "null"])
                    yield f"insert into root values ({self.rows}, '{name}', {self.rows + 1000}, {doc}, 'a')"
            case 3:
                yield f"update root set w = 'w{self.rows}' where {some}"
            case 4:
                yield f"delete from root where {some} and region = '{name}'"
            case 5:
                yield f"update root set region = '{name}' where {some}"
            case 6:
                yield f"update root set code = code + 1000 where region = '{name}' and {some}"
            case 7:
                yield from self._identity(name)
            case _ if len(self.partitions) < 4:
                yield from self._partition()
            case _:
                yield f"update root set id = id + 1000 where region = '{name}' and {some} and id < 1000"

    def last(self) -> Iterator[str]:
        yield from ()


@dataclass(slots=True)
class ShadowKey:
    """A table whose key moves to another column, as a change to bigint without downtime does it."""

    random: Random
    rows: int = 0
    key_type: str = "int"
    others: int = 0

    def create(self) -> Iterator[str]:
        columns = ["id int primary key", "a text", "n numeric", "doc text"]
        self.random.shuffle(columns)
        yield f"create table shadow ({', '.join(columns)})"
        yield "alter table shadow alter doc set storage external"

    def step(self) -> Iterator[str]:
        some = f"id % 3 = {self.random.randrange(3)}"
        match self.random.randrange(8):
            case 0 | 1 | 2:
                for _ in range(self.random.randint(1, 4)):
                    self.rows += 1
                    doc = self.random.choice([LARGE, "'short'", "null"])
                    yield f"insert into shadow (id, a, doc) values ({self.rows}, 'a{self.rows}', {doc})"
            case 3:
                yield f"update shadow set a = 'u{self.rows}' where {some}"
            case 4:
                yield f"delete from shadow where {some}"
            case 5:
                self.key_type = "bigint" if self.key_type == "int" else "int"
                yield f"alter table shadow add id_new {self.key_type}"
                yield "update shadow set id_new = id"
                yield "alter table shadow drop constraint shadow_pkey"
                kept = self.random.random() < 0.3
                self.others += kept
                yield f"alter table shadow {f'rename id to id_old{self.others}' if kept else 'drop id'}"
                if kept:
                    yield f"alter table shadow alter id_old{self.others} drop not null"
                yield "alter table shadow rename id_new to id"
                yield "alter table shadow add primary key (id)"
            case 6:
                self.others += 1
                yield f"alter table shadow add a_new{self.others} text"
                yield f"update shadow set a_new{self.others} = a"
                yield "alter table shadow drop a"
                yield f"alter table shadow rename a_new{self.others} to a"
            case _:
                yield f"update shadow set id = id + 100000 where {some} and id < 100000"

    def last(self) -> Iterator[str]:
        """A row, which shows the columns at the end of a night."""
        self.rows += 1
        yield f"insert into shadow (id) values ({self.rows})"


@dataclass(slots=True)
class Bag:
    """A table without a key, whose columns get defaults and other types, and whose composite gets attributes. The
    server sends an old row after each such change, so the archive shows it."""

    random: Random
    columns: int = 0
    attributes: list[str] = field(default_factory=lambda: ["x"])

    def create(self) -> Iterator[str]:
        yield "create type pair as (n int, x text)"
        yield "create table bag (id int, v pair)"
        yield "alter table bag replica identity full"

    def step(self) -> Iterator[str]:
        some = f"id % 3 = {self.random.randrange(3)}"
        match self.random.randrange(9):
            case 0 | 1 | 2:
                for _ in range(self.random.randint(1, 4)):
                    number = self.random.randrange(9)
                    yield f"insert into bag (id, v) select {number}, row(x.*)::pair from (select (null::pair).*) x"
                    yield f"insert into bag (id) values ({number}), ({number})"
            case 3:
                yield f"update bag set id = id + 1 where {some}"
            case 4:
                yield f"delete from bag where ctid in (select ctid from bag where {some} limit 2)"
            case 5:
                self.columns += 1
                default = self.random.choice(["7", "null", "random() * 9"])
                yield f"alter table bag add c{self.columns} int default {default}"
                yield self.shown()
            case 6 if self.columns:
                yield f"alter table bag alter c{self.columns} type text using 'n' || c{self.columns}"
                yield self.shown()
                yield f"alter table bag drop c{self.columns}"
                self.columns -= 1
            case 7:
                self.attributes.append(f"x{len(self.attributes)}")
                yield f"alter type pair add attribute {self.attributes[-1]} int"
                yield self.shown()
            case _ if len(self.attributes) > 1:
                yield f"alter type pair drop attribute {self.attributes.pop()}"
                yield self.shown()
            case _:
                yield "update bag set id = id"

    def last(self) -> Iterator[str]:
        yield "insert into bag (id) values (9)"

    def shown(self) -> str:
        if self.random.random() < 0.5:
            return "update bag set id = id"
        return "update bag set id = id where v is distinct from null"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_table_is_right_or_named(seed: int, server: Server, tmp_path: Path, landing: Path) -> None:
    random = Random(seed)
    parts: list[Partitions | ShadowKey | Bag] = [Partitions(random, seed % 2 == 0), ShadowKey(random), Bag(random)]
    rules = "[{match: public.root, key: [code]}]" if seed % 4 == 3 else "[]"
    target = in_memory(tmp_path, landing, rules)
    log: list[str] = []
    with judged_database(server, "histories", landing, publication="publish_via_partition_root = true") as database:
        for number in range(NIGHTS):
            statements = [text for part in parts for text in part.create()] if number == 0 else []
            for _ in range(STEPS * len(parts)):
                statements += random.choice(parts).step()
            statements += [text for part in parts for text in part.last()]
            log += [f"-- night {number}", *statements]
            server.psql("; ".join(statements))
            database.land()
            judgments = judge(target.night(), database.tables())
            wrong = {name: found.difference for name, found in judgments.items() if found.verdict is Verdict.OTHER}
            assert wrong == {}, "\n".join(log)

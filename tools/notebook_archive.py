"""Creates the notebooks' archive: eight minutes of a small shop on a real server, landed once a minute.

    python -m tools.notebook_archive notebooks/data

The changes are the same each time, but their times and transactions depend on the clock, so execute the notebooks again
afterwards. `shop` is the landing folder; `truth` has the rows that the server held at the end.
"""

from __future__ import annotations

import argparse
import gzip
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import psycopg

from tests.support.servers.postgres import Server

MINUTES = 8
MINUTE = 60.0  # seconds
ORDERS_IN_MINUTE = (60, 90, 140, 200, 170, 120, 80, 50)
CUSTOMERS, PRODUCTS = 60, 80
STORY = 137  # the order that the notebooks follow
CITIES = ("Bergen", "Graz", "Porto", "Turku", "Wrocław", "Zürich")
PAGES = ("/", "/search", "/cart", "/checkout", "/product")
SCHEMA = """
create table customers (id int primary key, name text not null, email text, city text, since date);
create table products (id int primary key, name text not null, price numeric(10,2), stock int);
create table orders (id int primary key, customer int, state text, total numeric(12,2), placed timestamptz);
create table lines (order_id int, line smallint, product int, quantity int, price numeric(10,2),
                    primary key (order_id, line));
create table visits (id bigint primary key, customer int, page text, seconds real, at timestamptz);
create publication shop for all tables;
"""
Cursor = psycopg.Cursor[tuple[object, ...]]


@dataclass(slots=True)
class Shop:
    """The workload, and its knowledge of the rows on the server."""

    server: Server
    connection: psycopg.Connection[tuple[object, ...]]
    chance: random.Random = field(default_factory=lambda: random.Random(8))
    orders: int = 0
    unpaid: list[int] = field(default_factory=list)
    visits: int = 0
    has_channel: bool = False

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        with self.connection.transaction(), self.connection.cursor() as cursor:
            yield cursor

    def begin(self) -> None:
        with self.transaction() as cursor:
            customers = [
                (i, f"Customer {i}", f"c{i}@example.org", self.chance.choice(CITIES), f"202{i % 6}-0{1 + i % 9}-11")
                for i in range(1, CUSTOMERS + 1)
            ]
            cursor.executemany("insert into customers values (%s, %s, %s, %s, %s)", customers)
            products = [(i, f"Product {i}", f"{self.chance.randrange(199, 9900) / 100:.2f}", 500) for i in range(1, 81)]
            cursor.executemany("insert into products values (%s, %s, %s, %s)", products)

    def order(self) -> None:
        self.orders += 1
        number, customer = self.orders, self.chance.randrange(1, CUSTOMERS + 1)
        with self.transaction() as cursor:
            columns, values = "id, customer, state, total, placed", "%s, %s, 'new', 0, now()"
            if self.has_channel:
                columns, values = f"{columns}, channel", f"{values}, '{self.chance.choice(('web', 'app'))}'"
            cursor.execute(f"insert into orders ({columns}) values ({values})", (number, customer))
            for line in range(1, self.chance.choice((2, 3, 3, 4))):
                product, quantity = self.chance.randrange(1, PRODUCTS + 1), self.chance.choice((1, 1, 2, 5))
                cursor.execute(
                    "insert into lines select %s, %s, id, %s, price from products where id = %s",
                    (number, line, quantity, product),
                )
                cursor.execute("update products set stock = stock - %s where id = %s", (quantity, product))
            cursor.execute(
                "update orders set total = (select sum(quantity * price) from lines where order_id = id) where id = %s",
                (number,),
            )
        self.unpaid.append(number)

    def pay(self) -> None:
        number = self.unpaid.pop(0)
        if number != STORY:
            with self.transaction() as cursor:
                cursor.execute("update orders set state = 'paid' where id = %s", (number,))

    def do(self, *statements: str) -> None:
        with self.transaction() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def reprice(self) -> None:
        self.do(
            "select pg_logical_emit_message(true, 'job', 'reprice')",
            "update products set price = round(price * 1.04, 2)",
        )

    def import_visits(self, cursor: Cursor, rows: int) -> None:
        new = range(self.visits + 1, self.visits + rows + 1)
        self.visits += rows
        values = [
            (n, self.chance.randrange(1, CUSTOMERS + 1), self.chance.choice(PAGES), self.chance.randrange(1, 900) / 10)
            for n in new
        ]
        cursor.executemany("insert into visits values (%s, %s, %s, %s, now())", values)

    def failing_import(self) -> None:
        """An import that is streamed, then fails, and succeeds on the second try without a part that it rolls back."""
        with self.connection.cursor() as cursor:
            cursor.execute("begin")
            self.import_visits(cursor, 1500)
            time.sleep(MINUTE / 30)
            cursor.execute("rollback")
            self.visits = 0
            cursor.execute("begin")
            self.import_visits(cursor, 1200)
            cursor.execute("savepoint rest")
            self.import_visits(cursor, 700)
            cursor.execute("rollback to savepoint rest")
            self.visits -= 700
            cursor.execute("commit")

    def add_channel(self) -> None:
        self.do("alter table orders add column channel text")
        self.has_channel = True


def at_minutes(shop: Shop) -> dict[tuple[int, float], Callable[[], None]]:
    """Events besides customers' orders, by minute and fraction of that minute."""
    order = f"where id = {STORY}"
    order_lines = f"where order_id = {STORY}"
    return {
        (1, 0.9): lambda: shop.do(
            f"update customers set city = 'Porto' where id = (select customer from orders {order})"
        ),
        (2, 0.5): shop.reprice,
        (3, 0.3): shop.failing_import,
        (4, 0.2): lambda: shop.do(f"update orders set state = 'paid' {order}"),
        (4, 0.6): lambda: shop.do(f"update orders set total = total - 50 {order}"),
        (5, 0.1): shop.add_channel,
        (5, 0.5): lambda: shop.do(f"update orders set state = 'cancelled', total = 0 {order}"),
        (6, 0.4): lambda: shop.do(f"delete from lines {order_lines}", f"delete from orders {order}"),
        (6, 0.7): shop.reprice,
    }


def run_minute(shop: Shop, minute: int) -> None:
    """Runs the minute's orders, evenly spread, and the planned events between them."""
    started = time.monotonic()
    planned = {at: act for (planned_minute, at), act in at_minutes(shop).items() if planned_minute == minute}
    orders = ORDERS_IN_MINUTE[minute]
    acts: list[tuple[float, Callable[[], None]]] = [(i / orders, shop.order) for i in range(orders)]
    acts += [((i + 0.4) / orders, shop.pay) for i in range(orders) if i % 10 < 7]
    for at, act in sorted([*acts, *planned.items()], key=lambda pair: pair[0]):
        time.sleep(max(0.0, started + at * MINUTE - time.monotonic()))
        act()
    time.sleep(max(0.0, started + MINUTE - time.monotonic()))


class Receiver:
    """pg_recvlogical, which runs all the time and opens a new file on SIGHUP."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.writing = folder / ".writing"
        self.process = server.start_recvlogical(
            "etl",
            self.writing,
            "--status-interval=1",
            publications=["shop"],
            proto_version=2,
            streaming="on",
            messages="true",
        )

    def land(self) -> None:
        landed = self.writing.with_name(f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}.bin")
        self.writing.rename(landed)
        self.process.send_signal(signal.SIGHUP)
        while not self.writing.exists():
            time.sleep(0.05)
        _compress(landed)

    def stop(self) -> None:
        """Stops after the receiver has confirmed everything."""
        end, reached = self.server.current_lsn(), "f"
        while reached != "t":
            time.sleep(0.2)
            reached = self.server.psql(f"select flush_lsn >= '{end}' from pg_stat_replication").strip()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        landed = self.writing.with_name(f"{datetime.now(timezone.utc):%Y%m%dT%H%M%S}.bin")
        _compress(self.writing.rename(landed))
        self.writing.with_name(".writing.log").unlink()


def _compress(file: Path) -> None:
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
    file.unlink()


def make(folder: Path) -> None:
    landing, truth = folder / "shop", folder / "truth"
    for path in (landing, truth):
        path.mkdir(parents=True)
    with Server(18) as server, server.connect() as connection, server.connect(autocommit=False) as other:
        connection.execute(SCHEMA)
        server.create_slot("etl")
        receiver = Receiver(server, landing)
        shop = Shop(server, connection)
        shop.begin()
        for minute in range(MINUTES):
            if minute == MINUTES - 1:
                shop.import_visits(other.cursor(), 900)  # still open when the archive ends
            run_minute(shop, minute)
            if minute < MINUTES - 1:
                receiver.land()
        receiver.stop()
        for table in ("customers", "products", "orders"):
            server.copy_csv(f"public.{table}", truth / f"public.{table}.csv")
        other.rollback()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder to create; it must not exist")
    make(parser.parse_args().folder)

"""Three nights of a small shop, with every change that takes several writes or waits from one night to the next."""

from __future__ import annotations

from pgoutput_etl.protocol.messages import Relation, ReplicaIdentity, Type
from tests.support.small_archives import (
    TEXT,
    Change,
    Messages,
    commit_prepared,
    delete,
    delete_full,
    insert,
    prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    truncate,
    update,
)

INT4, INT8, DATE = 23, 20, 1082
ORDERS, EMPTIED, STAFF, TYPED, DATED = 1, 2, 3, 4, 5
BAGS = (11, 12)

orders = table(oid=ORDERS, name="orders")
emptied = table(oid=EMPTIED, name="emptied")
staff, people = table(oid=STAFF, name="staff"), table(oid=STAFF, name="people")
bags = [table("v", oid=oid, name=f"bag{oid}", identity=ReplicaIdentity.FULL) for oid in BAGS]
dated, dated_and_more = (
    table("id", ("d", DATE), *more, oid=DATED, name="dated") for more in ((), ("more",))
)  # fmt: skip


def typed(*columns: tuple[str, int]) -> Relation:
    return table(("id", INT4), *columns, oid=TYPED, name="typed")


def in_bags(*values: str) -> list[Change]:
    return [insert(value, oid=oid) for oid in BAGS for value in values]


FIRST_COMMIT = transaction(
    *(1, 100, orders, insert("1", "a", oid=ORDERS), insert("2", "b", oid=ORDERS), insert("3", "c", oid=ORDERS)),
    *(emptied, insert("1", "a", oid=EMPTIED), staff, insert("1", "ann", oid=STAFF), *bags, *in_bags("a", "a", "b")),
    *(typed(("n", INT4)), insert("1", "7", oid=TYPED)),
)
FIRST: Messages = [
    *FIRST_COMMIT,
    *segment(50, Type(None, 16999, "public", "mood"), orders, insert("s1", "streamed", oid=ORDERS), first=True),
    *prepared(60, insert("p1", "prepared", oid=ORDERS), lsn=150),
]
SECOND: Messages = [
    *FIRST_COMMIT,  # sent again
    *transaction(
        *(2, 200, update("10", "a", old_key=["1", None], oid=ORDERS), delete("2", None, oid=ORDERS)),
        *(update("3", "cc", oid=ORDERS), insert("2", "again", oid=ORDERS)),
    ),
    *transaction(3, 300, insert("5", "gone", oid=EMPTIED), truncate(EMPTIED), insert("9", "left", oid=EMPTIED)),
    *transaction(4, 400, *(delete_full("a", oid=oid) for oid in BAGS), *in_bags("c")),
    *transaction(5, 500, insert("2", "8", oid=TYPED)),
    *transaction(6, 600, typed(("n", INT8), ("m", TEXT)), insert("3", str(2**40), "m", oid=TYPED)),
    *transaction(7, 700, typed(("n", TEXT), ("m", TEXT)), insert("4", "text", None, oid=TYPED)),
    *transaction(8, 800, people, insert("2", "bob", oid=STAFF), update("1", "anne", oid=STAFF)),
    *segment(50, insert("s2", "streamed", oid=ORDERS)),
    *stream_commit(50, 900),
    *commit_prepared(60, 1000),
    *segment(70, insert("t1", "open", oid=ORDERS), first=True),
    *segment(80, insert("u1", "aborted", oid=ORDERS), first=True),
    *stream_abort(80),
]
THIRD: Messages = [
    *segment(70, insert("t2", "open", oid=ORDERS)),
    *stream_commit(70, 1100),
    *transaction(9, 1200, update("10", "aa", oid=ORDERS), update("9", "kept", oid=EMPTIED), *in_bags("d")),
    *transaction(10, 1300, insert("5", "more", "m", oid=TYPED), delete("1", None, oid=STAFF)),
]
NIGHTS = [FIRST, SECOND, THIRD]

# With a table that is held halfway: its columns have changed when a value turns out to be unreadable.
NIGHTS_WITH_A_HELD_TABLE = [
    [*FIRST, *transaction(20, 101, dated, insert("1", "2024-01-31", oid=DATED))],
    [
        *SECOND,
        *transaction(21, 1001, insert("2", "2024-01-31", oid=DATED)),
        *transaction(22, 1002, dated_and_more, insert("3", "31/12/1977", "m", oid=DATED)),
    ],
    THIRD,
]

"""Tables with a state that somebody has to mend, and what the printed text asks for before its command is typed.

All tables of a season are in one database and one target. A table's name is the case's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

# In a case's SQL, the table that most cases create
T = "create table <t> (id int primary key, v text); insert into <t> values (1, 'a'), (2, 'b');"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A table's way into a state and out of it. `<t>` stands for its name in SQL.

    before: SQL before the slot exists. first, then, last: SQL of three nights. spoil, restore: SQL that another program
    runs on the Delta table after the first night, and before the commands are typed. rule, later, mended: the table's
    rule until the commands are typed, in the second night if it is another one then, and once they are typed; None if
    it has no rule. server: SQL on the server before the
    commands. state, reason: what a run says, a part of it. command: the one that is printed for the table.
    """

    name: str
    state: str
    command: str
    first: str = T
    then: str = ""
    last: str = ""
    before: str = ""
    spoil: str = ""
    restore: str = ""
    rule: str | None = None
    later: str | None = None
    mended: str | None = None
    server: str = ""
    reason: str = ""
    differs: str = ""

    def sql(self, statements: str) -> str:
        return statements.replace("<t>", self.name)


SNAPSHOT, REPAIR, BACKFILL, REDRIVE = "snapshot", "snapshot --repair", "backfill", "backfill --from-quarantine"
HOLD_CHANGES = "on_schema_change: {add: hold, drop: hold, rename: hold, retype: hold}"
SWAP = (
    "create table <t>_new (like <t> including all); insert into <t>_new values (1, '{0}'), (2, '{0}'); begin;"
    "drop table <t>; alter table <t>_new rename to <t>; commit;"
)
PARTITIONS = (
    "create table <t> (id int, created date, v text) partition by range (created);"
    "create table <t>_1 partition of <t> for values from ('2026-01-01') to ('2026-02-01');"
    "create table <t>_2 partition of <t> for values from ('2026-02-01') to ('2026-03-01');"
    "alter table <t>_1 add primary key (id); alter table <t>_2 add primary key (id);"
    "insert into <t> values (1, '2026-01-05', 'a'), (2, '2026-01-06', 'b'), (3, '2026-02-01', 'c');"
)

REMEDIES = (
    # Incomplete
    Remedy("incomplete", "incomplete", SNAPSHOT, before=T, first="insert into <t> values (3, 'c')"),
    Remedy(
        "incomplete_history",
        "incomplete",
        SNAPSHOT,
        before=T,
        first="update <t> set v = 'x' where id = 1",
        rule="mode: history",
        mended="mode: history",
    ),
    Remedy(
        "incomplete_soft",
        "incomplete",
        SNAPSHOT,
        before=T,
        first="delete from <t> where id = 1",
        rule="mode: soft_delete",
        mended="mode: soft_delete",
    ),
    Remedy(
        "incomplete_bag",
        "incomplete",
        SNAPSHOT,
        before="create table <t> (v text); alter table <t> replica identity full; insert into <t> values ('a'), ('a');",
        first="delete from <t> where ctid = '(0,1)'",
    ),
    Remedy(
        "attached",
        "incomplete",
        SNAPSHOT,
        first="create table <t>_old (id int, at date, v text, primary key (id, at));"
        "insert into <t>_old select i, '2024-01-01', 'v' from generate_series(1, 5) i;",
        then="begin; create table <t> (id int, at date, v text, primary key (id, at)) partition by range (at);"
        "alter table <t> attach partition <t>_old default; commit; insert into <t> values (100, '2024-03-01', 'new');",
    ),
    # Diverged
    Remedy(
        "diverged", "diverged", REPAIR, spoil="delete from <t> where id = 1", then="update <t> set v = 'x' where id = 1"
    ),
    Remedy(
        "diverged_bag",
        "diverged",
        REPAIR,
        first="create table <t> (v text); alter table <t> replica identity full; insert into <t> values ('a'), ('a');",
        spoil="delete from <t>",
        then="delete from <t> where ctid = '(0,1)'",
    ),
    Remedy(
        "diverged_masked",
        "diverged",
        SNAPSHOT,
        spoil="delete from <t> where id = 1",
        then="update <t> set v = 'x' where id = 1",
        rule="columns: {v: redact}",
        mended="columns: {v: redact}",
    ),
    Remedy(
        "diverged_accepted",
        "diverged",
        REPAIR,
        spoil="delete from <t> where id = 1",
        then="update <t> set v = 'x' where id = 1",
        mended="on_missing_row: ignore",
    ),
    # Ambiguous
    Remedy(
        "ambiguous",
        "ambiguous",
        BACKFILL,
        first="create table <t> (id int primary key, n int, v text); insert into <t> values (1, 10, 'a');",
        then="alter table <t> drop v; alter table <t> alter n type bigint; alter table <t> add total int;"
        "insert into <t> values (2, 5000000000, 7);",
        mended="columns: {total: added, n: {renamed_from: n}}",
    ),
    Remedy(
        "misread",
        "held",
        REDRIVE,
        first="create table <t> (id int primary key, a int); insert into <t> values (1, 10), (2, 20);",
        then="alter table <t> rename a to aa; alter table <t> add a text; insert into <t> values (3, 30, 'x');",
        mended="columns: {aa: {renamed_from: a}, a: added}",
    ),
    # Held: the archive lacks what the server has
    Remedy(
        "new_key",
        "held",
        SNAPSHOT,
        then="alter table <t> add k int not null default 7; alter table <t> drop constraint <t>_pkey;"
        "alter table <t> add primary key (k, id); insert into <t> values (3, 'c', 1);",
    ),
    Remedy(
        "retyped_key",
        "held",
        SNAPSHOT,
        first="create table <t> (k numeric primary key, v text); insert into <t> values (1.5, 'a'), (7, 'b');",
        then="alter table <t> alter k type int using k::int; insert into <t> values (9, 'c');",
    ),
    Remedy(
        "missing_row_holds",
        "held",
        SNAPSHOT,
        spoil="delete from <t> where id = 1",
        then="update <t> set v = 'x' where id = 1",
        rule="on_missing_row: hold",
        mended="on_missing_row: hold",
    ),
    Remedy(
        "generated_key",
        "held",
        SNAPSHOT,
        first="create table <t> (x int, y int generated always as (x * 2) stored, note text, primary key (y));"
        "insert into <t> values (1, default, 'a'), (2, default, 'b');",
        then="update <t> set note = 'changed' where x = 1",
        server="alter table <t> replica identity full; update <t> set note = 'again' where x = 1",
        mended="key: [x]",
        differs="the server does not send y",
    ),
    # Held by a contract
    Remedy(
        "added_column",
        "held",
        BACKFILL,
        then="alter table <t> add n int; insert into <t> values (3, 'c', 1)",
        rule=HOLD_CHANGES,
        mended=HOLD_CHANGES,
    ),
    Remedy(
        "retyped_column",
        "held",
        SNAPSHOT,
        first="create table <t> (id int primary key, v text); insert into <t> values (1, '1'), (2, '2');",
        then="alter table <t> alter v type int using v::int + 1; insert into <t> values (3, 3)",
        rule=HOLD_CHANGES,
        mended=HOLD_CHANGES,
    ),
    # Held by the configuration
    Remedy("unknown_key", "held", REDRIVE, rule="key: [nope]", mended="key: [id]", reason="that the table lacks"),
    Remedy("key_not_sent", "held", REDRIVE, rule="key: [v]", reason="is not in the old tuples of this table"),
    Remedy(
        "not_unique",
        "held",
        REDRIVE,
        first="create table <t> (email text, n int); alter table <t> replica identity full;"
        "insert into <t> values ('x', 1), ('x', 2);",
        then="update <t> set n = 20 where n = 2",
        rule="key: [email]",
        mended="key: [email, n]",
        reason="inserts a row under the key of another row",
    ),
    Remedy(
        "null_key",
        "held",
        REDRIVE,
        first="create table <t> (email text, n int); alter table <t> replica identity full;"
        "insert into <t> values ('x', 1), (null, 2);",
        rule="key: [email]",
        reason="of the configured key is NULL",
    ),
    Remedy(
        "soft_bag",
        "held",
        REDRIVE,
        first="create table <t> (v text); alter table <t> replica identity full; insert into <t> values ('a');",
        rule="mode: soft_delete",
        mended="mode: mirror",
        reason="mode soft_delete needs a key",
    ),
    Remedy(
        "unskipped",
        "held",
        BACKFILL,
        then="insert into <t> values (3, 'c')",
        later="skip: true",
        reason="while the configuration skipped it",
    ),
    Remedy(
        "property",
        "held",
        REDRIVE,
        rule="properties: {delta.nonsense: 1}",
        mended="comment: none",
        reason="Delta refuses the layout",
    ),
    Remedy(
        "zone",
        "held",
        REDRIVE,
        first="create table <t> (id int primary key, at timestamp); insert into <t> values (1, '2026-01-01 12:00');",
        then="alter table <t> alter at type timestamptz using at at time zone 'UTC'; insert into <t> values (2, now())",
        rule="columns: {at: {converted_from: timestamptz, time_zone: UTC}}",
        mended="columns: {at: {converted_from: timestamp, time_zone: UTC, renamed_from: at}}",
        reason="the configuration declares converted_from",
    ),
    Remedy(
        "wide_partitions",
        "held",
        REDRIVE,
        first=PARTITIONS,
        then="delete from <t> where id = 2; update <t> set v = 'c2' where id = 3;",
        rule="key: [id, created]",
        mended="key: [id]",
        reason="can't be identified: its partition",
    ),
    # Held by names
    Remedy(
        "reserved_name",
        "held",
        SNAPSHOT,
        then="alter table <t> add _pg_xid int; insert into <t> values (3, 'c', 1)",
        server="alter table <t> rename _pg_xid to pg_xid; insert into <t> values (4, 'd', 1)",
        reason="is reserved",
    ),
    Remedy(
        "two_cases",
        "held",
        SNAPSHOT,
        then="alter table <t> add \"ID\" int; insert into <t> values (3, 'c', 1)",
        server="alter table <t> rename \"ID\" to other; insert into <t> values (4, 'd', 1)",
        reason="differ only in case",
    ),
    # Held by other programs
    Remedy(
        "checked",
        "held",
        REDRIVE,
        spoil="alter table <t> add constraint short check (length(v) < 5)",
        then="insert into <t> values (3, 'too long')",
        restore="alter table <t> drop constraint if exists short",
        reason="Spark or Delta Lake failed",
    ),
    Remedy("gone", "held", REDRIVE, spoil="drop", then="insert into <t> values (3, 'c')", reason="no table at"),
    # Replaced by another table
    Remedy("swapped", "swapped", SNAPSHOT, then=SWAP.replace("{0}", "x"), last=SWAP.replace("{0}", "y")),
)


def rules(remedies: Iterable[Remedy], mended: bool = False, later: bool = False) -> list[dict[str, Any]]:
    """The configuration's `tables`."""
    rules = []
    for remedy in remedies:
        rule = remedy.mended if mended else (later and remedy.later) or remedy.rule
        if rule is not None:
            own: dict[str, Any] = yaml.safe_load(f"{{{rule}}}")
            rules.append({"match": f"public.{remedy.name}", **own})
    return rules

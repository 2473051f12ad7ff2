"""How each mode stores rows in a target, and the columns that it adds after the table's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgoutput_etl.config.rules import Mode

UNREPRESENTABLE_COLUMN = "_pg_unrepresentable"

METADATA_COLUMNS = ("_pg_commit_lsn", "_pg_commit_ts", "_pg_xid", UNREPRESENTABLE_COLUMN)

DELETED_COLUMN = "_pg_deleted"

VALID_FROM_LSN, VALID_TO_LSN = "_pg_valid_from_lsn", "_pg_valid_to_lsn"

LSN_COLUMNS = ("_pg_commit_lsn", VALID_FROM_LSN, VALID_TO_LSN)

VALID_FROM_TS, VALID_TO_TS = "_pg_valid_from_ts", "_pg_valid_to_ts"

OP_COLUMN, SEQ_COLUMN = "_pg_op", "_pg_seq"

OLD_KEY_COLUMN, UNCHANGED_COLUMN = "_pg_old_key", "_pg_unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMode:
    """The meaning of a target's rows. columns: added by the mode after METADATA_COLUMNS, with type and description.

    is_copy: exactly PostgreSQL's rows, so a batch writes its net effect. has_rows: False if the target stores changes.
    needs_key: False if equal rows can be told apart. current: Spark SQL that selects rows which still exist in
    PostgreSQL. ends: for other rows, those METADATA_COLUMNS that differ as of the commit that ended them; None if there
    are no such rows. identity: columns that identify a row in addition to the key, or instead of it in a table of
    changes.
    """

    columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_copy: bool = False
    has_rows: bool = True
    needs_key: bool = False
    current: str = "true"
    ends: Mapping[str, str | None] | None = None
    identity: tuple[str, ...] = ()


_MODES = {
    Mode.MIRROR: TableMode(is_copy=True),
    Mode.SOFT_DELETE: TableMode(
        columns={DELETED_COLUMN: ("boolean", "True if PostgreSQL deleted the row")},
        needs_key=True,
        current=f"NOT {DELETED_COLUMN}",
        ends={},
    ),
    Mode.HISTORY: TableMode(
        columns={
            VALID_FROM_LSN: ("bigint", "Commit LSN of the transaction that wrote this version"),
            VALID_TO_LSN: (
                "bigint",
                "Commit LSN of the transaction that ended this version; NULL for the current version",
            ),
            VALID_FROM_TS: ("timestamp", "Commit time of the transaction that wrote this version"),
            VALID_TO_TS: (
                "timestamp",
                "Commit time of the transaction that ended this version; NULL for the current version",
            ),
        },
        current=f"{VALID_TO_LSN} IS NULL",
        ends={"_pg_commit_lsn": VALID_TO_LSN, "_pg_commit_ts": VALID_TO_TS, "_pg_xid": None},
        identity=(VALID_FROM_LSN,),
    ),
    Mode.APPEND: TableMode(
        columns={
            OP_COLUMN: ("string", "I (INSERT), U (UPDATE), D (DELETE), or T (TRUNCATE)"),
            SEQ_COLUMN: ("bigint", "Orders the changes of one commit"),
            OLD_KEY_COLUMN: ("map<string,string>", "The old key, by column, if an UPDATE changed the key"),
            UNCHANGED_COLUMN: (
                "array<string>",
                "Columns whose large values an UPDATE left unchanged: they were not sent",
            ),
        },
        has_rows=False,
        identity=("_pg_commit_lsn", SEQ_COLUMN),
    ),
}


def table_mode(mode: Mode) -> TableMode:
    return _MODES[mode]


def added_columns(mode: Mode) -> tuple[str, ...]:
    return (*METADATA_COLUMNS, *_MODES[mode].columns)

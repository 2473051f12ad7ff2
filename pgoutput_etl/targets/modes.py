"""The columns that each mode adds after a table's own columns, in this order."""

from __future__ import annotations

from pgoutput_etl.config.settings import Mode

UNREPRESENTABLE_COLUMN = "_pg_unrepresentable"

METADATA_COLUMNS = ("_pg_commit_lsn", "_pg_commit_ts", "_pg_xid", UNREPRESENTABLE_COLUMN)

DELETED_COLUMN = "_pg_deleted"

VALID_FROM_LSN, VALID_TO_LSN = "_pg_valid_from_lsn", "_pg_valid_to_lsn"

VALID_FROM_TS, VALID_TO_TS = "_pg_valid_from_ts", "_pg_valid_to_ts"

OP_COLUMN, SEQ_COLUMN = "_pg_op", "_pg_seq"

OLD_KEY_COLUMN, UNCHANGED_COLUMN = "_pg_old_key", "_pg_unchanged"


_OF_MODE: dict[Mode, tuple[str, ...]] = {
    Mode.MIRROR: (),
    Mode.SOFT_DELETE: (DELETED_COLUMN,),
    Mode.HISTORY: (VALID_FROM_LSN, VALID_TO_LSN, VALID_FROM_TS, VALID_TO_TS),
    Mode.APPEND: (OP_COLUMN, SEQ_COLUMN, OLD_KEY_COLUMN, UNCHANGED_COLUMN),
}


def added_columns(mode: Mode) -> tuple[str, ...]:
    return (*METADATA_COLUMNS, *_OF_MODE[mode])

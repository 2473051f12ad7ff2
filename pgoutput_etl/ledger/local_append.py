"""Appends to the ledger's tables on local storage with delta-rs, which needs no Spark job for a few rows."""

from __future__ import annotations

import time
from contextlib import suppress
from random import uniform

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

_ATTEMPTS = 20

_COMMITS = 10  # between two checkpoints

_WAIT = 0.05  # maximum seconds between two attempts


def append_once(path: str, rows: pa.Table, application: str, version: int) -> bool:
    """Appends rows unless the table already has this or a later version of the application, as Delta does in Spark.
    Creates the table, and adds columns that it lacks.

    Tries again after another writer's commit. Returns False if delta-rs can't write to the table: its file system has
    no hard links, or the table has features that delta-rs doesn't know.
    """
    # delta-rs would retry after a conflict without checking whether the other commit has the same version.
    mark = CommitProperties(app_transactions=[Transaction(application, version)], max_commit_retries=0)
    for _ in range(_ATTEMPTS):
        try:
            if not DeltaTable.is_deltatable(path):  # not by appending, because two creators would both append
                DeltaTable.create(path, rows.schema, mode="ignore")
            table = DeltaTable(path)
            if not _has(table, application, version):
                write_deltalake(table, rows, mode="append", schema_mode="merge", commit_properties=mark)
                _checkpoint(table)
            return True
        except CommitFailedError:
            time.sleep(uniform(0, _WAIT))
        except (DeltaError, OSError):
            return False
    return False


def _checkpoint(table: DeltaTable) -> None:
    """Writes a checkpoint every few commits, so that opening the table, which every run does many times, stays fast. By
    default, delta-rs writes one only every 100 commits."""
    if table.version() % _COMMITS == 0:
        with suppress(DeltaError, OSError):  # a later checkpoint will do
            table.create_checkpoint()


def _has(table: DeltaTable, application: str, version: int) -> bool:
    stored = table.transaction_version(application)
    return stored is not None and stored >= version

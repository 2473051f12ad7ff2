"""The folders below state.root that contain values of rows. On local storage, only this user and state.group may read
them.

The other folders contain none, and other programs read them: manifests, and whatever `status` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from pgoutput_etl.file_access import Access
from pgoutput_etl.spark.platform import local_path

# Tables with bytes of rows, or with contents of logical Messages.
TABLES = frozenset({"catalog", "messages", "open_transactions", "quarantine", "relations"})

# Tables that were moved or are being built, rows of a snapshot, and keys of an erasure.
FOLDERS = ("displaced", "erasing", "rebuilt", "staged")


@contextmanager
def private_folders(spark: SparkSession, root: str, names: Iterable[str], access: Access) -> Iterator[None]:
    """Makes the folders private before the context writes to them, and afterwards the files in them. Leaves no empty
    folder."""
    local = local_path(spark, root)
    folders = [] if local is None else [Path(local, name) for name in names]
    for folder in folders:
        access.make_folder(folder)
    try:
        yield
    finally:
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()  # fails unless it is empty
            access.give_all(folder)

"""The folders below state.root that have rows' values. On local storage, only this user and state.group may read them.

The others have none, and other programs read them: manifests, and what `status` shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from pgoutput_etl.file_access import Access
from pgoutput_etl.spark.platform import local_path

# Tables with bytes of rows, and contents of logical Messages.
TABLES = frozenset({"catalog", "messages", "open_transactions", "quarantine", "relations"})

# Tables that were moved or are being built, rows of a snapshot, and the keys of an erasure.
FOLDERS = ("displaced", "erasing", "rebuilt", "staged")


@contextmanager
def private_folders(spark: SparkSession, root: str, names: Iterable[str], access: Access) -> Iterator[None]:
    """The folders are private before the context writes into them, and the files in them afterwards. Leaves no empty
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
                folder.rmdir()  # only an empty one
            access.give_all(folder)

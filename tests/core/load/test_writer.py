"""How many tables are written at a time."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import Mock

import pytest

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.load.change_source import DRIVER_TABLE_BYTES
from pgoutput_etl.load.writer import Writer, no_claim
from pgoutput_etl.places import Place
from pgoutput_etl.targets.plan import TableTask
from pgoutput_etl.targets.write_method import SMALL_ROWS


@dataclass
class Threads:
    """Targets that record the size of each pool."""

    sizes: list[int] = field(default_factory=list)

    def pool(self, tables: int) -> Executor:
        self.sizes.append(tables)
        return ThreadPoolExecutor(tables)


def task(path: str, size: int | None = 10, rows: int | None = 10, mode: Mode = Mode.MIRROR) -> TableTask:
    changes, state = Mock(size=size), Mock(rows=rows)
    found: Any = Mock(spec=TableTask, path=Place.parse(path), changes=changes, state=state, mode=mode)
    return cast(TableTask, found)


@pytest.mark.parametrize(
    ("tasks", "sizes"),
    [
        ([task("s3a://lake/a"), task("/lake/b"), task("abfss://c@d/e")], [16, 2]),
        ([task("/lake/b"), task("file:/lake/b"), task("`main`.`public`.`t`")], [2]),
        ([task("s3a://lake/a", size=DRIVER_TABLE_BYTES + 1)], [2]),
        ([task("s3a://lake/a", size=None), task("s3a://lake/b", rows=None)], [2]),
        ([task("s3a://lake/a", rows=SMALL_ROWS + 1)], [2]),
        ([task("s3a://lake/a", rows=SMALL_ROWS)], [16]),
        ([task("s3a://lake/a", mode=Mode.HISTORY), task("s3a://lake/a[source=b]")], [2]),
        ([], []),
    ],
)
def test_small_tables_in_object_storage_are_written_many_at_a_time(
    tasks: list[TableTask], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets, config = Threads(), Mock()
    config.merge.parallel_tables = 2
    monkeypatch.setattr(Writer, "_write_table", lambda _self, _changes, task: task)
    writer = Writer(cast(Any, targets), config, Mock(), 0, no_claim, str, lambda _: None)
    written = writer._write_tables(cast(Any, None), tasks)
    assert targets.sizes == sizes
    assert [id(result) for result in written] == [id(task) for task in tasks]

"""A transaction that was committed twice comes from two servers, unless xids may have wrapped around in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pytest

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.ingest.executors import TransactionFilter
from pgoutput_etl.ingest.source_check import check_history
from pgoutput_etl.transactions.assembly import Assembly

Commit = tuple[int, int | None, str, int | None]  # file, xid, status, LSN


@dataclass(frozen=True, slots=True)
class Commits:
    ours: tuple[Commit, ...]
    earlier: tuple[Commit, ...] = ()

    def few_ended(self, which: TransactionFilter) -> pa.Table:
        return which.filtered(as_table(self.ours))

    def few_before(self, xids: tuple[int, int]) -> pa.Table:
        return as_table(c for c in self.earlier if c[1] is not None and xids[0] <= c[1] <= xids[1])

    def may_have_resent(self) -> bool:
        return False

    def unknown_resent(self) -> list[tuple[int, int, int]]:
        raise AssertionError("nothing was resent")


def as_table(commits: Iterable[Commit]) -> pa.Table:
    fields = [("file", pa.int64()), ("xid", pa.int64()), ("fate", pa.string()), ("commit_lsn", pa.int64())]
    schema = pa.schema(fields)
    rows = [dict(zip(schema.names, commit, strict=True)) for commit in commits]
    return pa.Table.from_pylist(rows, schema)


def check(history: Commits, overlaps: dict[int, tuple[int, int]], xids: Iterable[int] = ()) -> None:
    assembly = Assembly()
    assembly.overlaps, assembly.overlapping_xids = overlaps, set(xids)
    check_history(history, assembly, lambda file: f"file {file}")


def test_an_xid_of_an_earlier_batch() -> None:
    ours = ((3, 12, "committed", 500), (3, 11, "committed", 600))
    with pytest.raises(SequenceError, match=r"file 3: transaction 11 was committed at 0/258, and before that at 0/C8"):
        check(Commits(ours, ((1, 11, "committed", 200),)), {3: (11, 12)})


def test_an_xid_twice_in_a_batch() -> None:
    with pytest.raises(SequenceError, match="file 4: transaction 11"):
        check(Commits(((3, 11, "quarantined", 500), (4, 11, "refused", 600))), {}, [11])


@pytest.mark.parametrize(
    "earlier",
    [
        (1, 11, "aborted", None),
        (1, 11, "committed", 500),  # the same commit, resent
        (1, 12, "committed", 200),
        (1, None, "committed", 200),
        (1, 11, "committed", 500 - 2**37),
    ],
)
def test_commits_that_may_come_from_one_server(earlier: Commit) -> None:
    check(Commits(((3, 11, "committed", 500),), (earlier,)), {3: (11, 12)})
    check(Commits(((3, 11, "committed", 500), earlier)), {3: (11, 12)})

"""Fates of rows, where many transactions with aborted subtransactions meet in one block."""

from __future__ import annotations

import pyarrow as pa

from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus
from pgoutput_etl.transactions.status_lookup import DECIDED_BY, STATUSES, StatusLookup

LAST_XID = 2**32 - 1


def test_a_subtransaction_is_aborted_in_its_own_transaction_alone() -> None:
    first = Outcome(TransactionStatus.COMMITTED, 10, ((1, 1),), commit_lsn=100, aborted_subxids=(LAST_XID, 11))
    second = Outcome(TransactionStatus.COMMITTED, 20, ((1, 2), (2, 1)), commit_lsn=200)
    third = Outcome(TransactionStatus.OPEN, 30, ((2, 2),), aborted_subxids=(31,))
    fates = StatusLookup.of([first, second, third], [])
    rows = [
        ((1, 1, LAST_XID), TransactionStatus.ABORTED, 100),
        ((1, 1, 11), TransactionStatus.ABORTED, 100),
        ((1, 1, 10), TransactionStatus.COMMITTED, 100),
        ((1, 1, None), TransactionStatus.COMMITTED, 100),
        ((1, 2, None), TransactionStatus.COMMITTED, 200),  # beside the last xid of the transaction before, by number
        ((2, 1, LAST_XID), TransactionStatus.COMMITTED, 200),
        ((2, 1, 31), TransactionStatus.COMMITTED, 200),
        ((2, 2, 31), TransactionStatus.ABORTED, None),
        ((2, 2, 11), TransactionStatus.OPEN, None),
        ((3, 1, 31), TransactionStatus.COMMITTED, 7),  # an ordinary one within its file
    ]
    told = [dict(zip(("file", "unit", "xid"), place, strict=True)) for place, *_ in rows]
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in DECIDED_BY])
    decided = fates.decide(pa.RecordBatch.from_pylist([{"stretch": 0, "commit_lsn": 7, **row} for row in told], schema))
    assert [STATUSES[fate] for fate in decided.status] == [fate for _, fate, _ in rows]
    assert decided.commit_lsn.to_pylist() == [lsn for *_, lsn in rows]

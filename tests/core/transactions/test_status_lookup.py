"""The statuses of rows of many transactions with aborted subtransactions in one block."""

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
    statuses = StatusLookup.of([first, second, third], [])
    rows = [
        ((1, 1, LAST_XID), TransactionStatus.ABORTED, 100),
        ((1, 1, 11), TransactionStatus.ABORTED, 100),
        ((1, 1, 10), TransactionStatus.COMMITTED, 100),
        ((1, 1, None), TransactionStatus.COMMITTED, 100),
        ((1, 2, None), TransactionStatus.COMMITTED, 200),  # packed, next to the last xid of the previous transaction
        ((2, 1, LAST_XID), TransactionStatus.COMMITTED, 200),
        ((2, 1, 31), TransactionStatus.COMMITTED, 200),
        ((2, 2, 31), TransactionStatus.ABORTED, None),
        ((2, 2, 11), TransactionStatus.OPEN, None),
        ((3, 1, 31), TransactionStatus.COMMITTED, 7),  # an ordinary transaction within its file
    ]
    positions = [dict(zip(("file", "unit", "xid"), position, strict=True)) for position, *_ in rows]
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in DECIDED_BY])
    batch = pa.RecordBatch.from_pylist([{"stretch": 0, "commit_lsn": 7, **position} for position in positions], schema)
    decided = statuses.decide(batch)
    assert [STATUSES[index] for index in decided.status] == [status for _, status, _ in rows]
    assert decided.commit_lsn.to_pylist() == [lsn for *_, lsn in rows]

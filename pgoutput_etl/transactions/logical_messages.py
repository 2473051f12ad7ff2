"""Logical decoding Messages (pg_logical_emit_message) that count, from message rows: what the ledger's `messages` has.

One that is transactional counts if its transaction does, exactly as a change would. Any other counts wherever it
stands, whatever becomes of the transaction around it. Each is identified by its LSN, which is that of the end of its
WAL record, with prefix and content: the server sends the same again where a receiver connects again.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.scan.message_row import HEAD
from pgoutput_etl.transactions.status_lookup import COMMITTED, DECIDED_BY, StatusLookup

# What `messages_that_count` looks at.
COUNTED_BY = (*DECIDED_BY, "ordinal", "body")

LOGICAL_SCHEMA = pa.schema(
    [
        ("prefix", pa.string()),
        ("content", pa.binary()),
        ("lsn", pa.int64()),  # the Message's own
        ("transactional", pa.bool_()),
        ("xid", pa.int64()),  # and commit_lsn, commit_ts: the transaction's; NULL of those of none
        ("commit_lsn", pa.int64()),
        ("commit_ts", pa.int64()),  # microseconds since 2000-01-01 UTC
        ("file", pa.int64()),
        ("ordinal", pa.int64()),
    ]
)

IDENTIFIED_BY = ("lsn", "prefix", "content")


def decoded(body: bytes, fragment: int, xid: int | None, scope: int | None) -> Message:
    """A row's Message. In a head that can be read both ways, `scope` tells: only streamed transactions have one."""
    message = decode(body, xid is not None or (fragment == HEAD and scope is not None))
    assert isinstance(message, Message)
    return message


def messages_that_count(rows: pa.RecordBatch, statuses: StatusLookup) -> pa.RecordBatch:
    """LOGICAL_SCHEMA. `rows`: of Messages alone, with the columns COUNTED_BY. Those of no transaction may be there more
    than once."""
    decided = statuses.decide(rows)
    listed = rows.select(["file", "ordinal", "unit", "xid", "body"]).to_pylist()
    told = zip(
        decided.status.tolist(),
        decided.top_xid.to_pylist(),
        decided.commit_lsn.to_pylist(),
        decided.commit_ts.to_pylist(),
        decided.scope.to_pylist(),
        strict=True,
    )
    found: list[dict[str, Any]] = []
    for row, (status, top_xid, commit_lsn, commit_ts, scope) in zip(listed, told, strict=True):
        message = decoded(row["body"], row["unit"], row["xid"], scope)
        own = {"prefix": message.prefix, "content": message.content, "lsn": message.lsn}
        place = {"file": row["file"], "ordinal": row["ordinal"]}
        if not message.transactional:
            found.append({**own, "transactional": False, **place})
        elif status == COMMITTED and not statuses.is_aborted(row["file"], row["unit"], message.xid):
            of_transaction = {"xid": top_xid, "commit_lsn": commit_lsn, "commit_ts": commit_ts}
            found.append({**own, "transactional": True, **of_transaction, **place})
    return pa.RecordBatch.from_pylist(found, LOGICAL_SCHEMA)

"""The logical decoding Messages (pg_logical_emit_message), which are recorded in the ledger's table `messages`.

A transactional Message counts if its transaction is committed, like a change. Any other Message always counts. A
Message is identified by its LSN (the end of its WAL record), prefix, and content, because the server sends it again
when a receiver reconnects.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.scan.message_row import HEAD
from pgoutput_etl.transactions.status_lookup import COMMITTED, DECIDED_BY, StatusLookup

# The columns that `messages_that_count` reads.
COUNTED_BY = (*DECIDED_BY, "ordinal", "body")

LOGICAL_SCHEMA = pa.schema(
    [
        ("prefix", pa.string()),
        ("content", pa.binary()),
        ("lsn", pa.int64()),  # the Message's own
        ("transactional", pa.bool_()),
        ("xid", pa.int64()),  # xid, commit_lsn, commit_ts: the transaction's; NULL if not transactional
        ("commit_lsn", pa.int64()),
        ("commit_ts", pa.int64()),  # microseconds since 2000-01-01 UTC
        ("file", pa.int64()),
        ("ordinal", pa.int64()),
    ]
)

IDENTIFIED_BY = ("lsn", "prefix", "content")


def decoded(body: bytes, fragment: int, xid: int | None, scope: int | None) -> Message:
    """The Message in a row's body. If the fragment is a head, `scope` shows whether its transaction is streamed."""
    message = decode(body, xid is not None or (fragment == HEAD and scope is not None))
    assert isinstance(message, Message)
    return message


def messages_that_count(rows: pa.RecordBatch, statuses: StatusLookup) -> pa.RecordBatch:
    """The Messages, as LOGICAL_SCHEMA; non-transactional ones possibly more than once. rows: only rows of Messages,
    with the columns COUNTED_BY."""
    decided = statuses.decide(rows)
    messages: list[dict[str, Any]] = []
    for row, status, top_xid, commit_lsn, commit_ts, scope in zip(
        rows.select(["file", "ordinal", "unit", "xid", "body"]).to_pylist(),
        decided.status.tolist(),
        decided.top_xid.to_pylist(),
        decided.commit_lsn.to_pylist(),
        decided.commit_ts.to_pylist(),
        decided.scope.to_pylist(),
        strict=True,
    ):
        message = decoded(row["body"], row["unit"], row["xid"], scope)
        own = {"prefix": message.prefix, "content": message.content, "lsn": message.lsn}
        position = {"file": row["file"], "ordinal": row["ordinal"]}
        if not message.transactional:
            messages.append({**own, "transactional": False, **position})
        elif status == COMMITTED and not statuses.is_aborted(row["file"], row["unit"], message.xid):
            transaction = {"xid": top_xid, "commit_lsn": commit_lsn, "commit_ts": commit_ts}
            messages.append({**own, "transactional": True, **transaction, **position})
    return pa.RecordBatch.from_pylist(messages, LOGICAL_SCHEMA)

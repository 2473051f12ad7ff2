"""The option that selects the commit to read tables as of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.moment import At, Moment
from pgoutput_etl.options import LSN, XID, Former, Option, Value

MOMENT = Value("MOMENT", Moment.parse)

AsOf: TypeAlias = Annotated[
    At | None,
    Option(
        "as of a commit: its LSN; a time (ISO 8601, UTC unless it names a zone), for the last commit by then; "
        "xid:8412, for a transaction's commit; before:8412, for the commit before it",
        MOMENT,
    ),
]

NamedAsOf: TypeAlias = Annotated[  # for jobs that used other names for it
    AsOf,
    Former("--lsn", value=LSN),
    Former("--at-xid", value=Value(XID.name, lambda text: Moment.parse(f"xid:{text}"))),
    Former("--before-xid", value=Value(XID.name, lambda text: Moment.parse(f"before:{text}"))),
    Former(keyword="moment"),
]


def only_commit(xid: int, commits: Sequence[int]) -> int:
    """commits: of the transactions with an xid. Raises ConfigError unless there is exactly one."""
    if not commits:
        raise ConfigError(
            f"xid {xid}: the ledger has no committed transaction with it. It may be open or aborted, or maintenance "
            "has deleted its record: name the commit's LSN or time"
        )
    if len(commits) > 1:
        raise ConfigError(
            f"xid {xid}: several transactions had it, which committed at {', '.join(map(format_lsn, commits))}: name "
            "the LSN of one"
        )
    return commits[0]

"""What a version must know to read a ledger, and the number by which an older version refuses it."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.landing.fingerprint import FileStatus
from pgoutput_etl.ledger.tables import FORMAT, SCHEMAS
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.plan import Since
from pgoutput_etl.transactions.outcome import TransactionStatus


def values(kind: type[Enum]) -> list[str]:
    return sorted(member.value for member in kind)


def nested(table: str, column: str) -> str:
    return " ".join(field.name for field in SCHEMAS[table].field(column).type.value_type)


def test_a_ledger_that_an_older_version_cannot_read_has_a_higher_number() -> None:
    """A version looks up values and unpacks nested columns by name, so it fails at new ones. To add any of these,
    raise FORMAT, and add the number to docs/upgrading.md."""
    assert FORMAT == 5
    assert nested("batches", "tables") == (
        "oid schema table path version last_commit_lsn status reason reason_kind relation key retired types rows mode "
        "uses snapshot last_row complete_by complete_lsn mismatches doubts declared changed_at memory"
    )
    assert nested("batches", "files") == (
        "file path size modified status offset consumed prefix_hash distinctive varied framing begins_in_stream "
        "ends_in_stream same_as unfinished reason decompressed_size head oids"
    )
    assert nested("relations", "columns") == "name type_oid type_modifier is_key number form initial"
    assert nested("catalog", "columns") == nested("relations", "columns")
    assert values(Since) == [
        *("attachment", "creation", "first change", "gap", "rewrite", "snapshot", "truncate", "unlogged")
    ]
    assert values(Mode) == ["append", "history", "mirror", "soft_delete"]
    assert values(FileStatus) == ["duplicate", "moved", "read", "refused", "same", "unreadable"]
    assert values(TransactionStatus) == ["aborted", "committed", "open", "quarantined", "refused", "resent"]
    assert values(Framing) == ["auto", "copydata", "length_prefixed", "pgcopy", "recvlogical"]
    assert values(ReplicaIdentity) == ["d", "f", "i", "n"]
    assert [field.name for field in fields(Doubt)] == ["column", "is_kept", "former", "earlier"]
    assert [field.name for field in fields(Mismatches)] == ["missing", "doubled", "commit_lsn", "xid"]

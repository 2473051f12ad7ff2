"""Why data is not applied: a text for people, and a kind, which alone determines what resolves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any


class ReasonKind(Enum):
    """The ledger stores these values. A reason without a kind has no specific command."""

    CONTRACT = "contract"  # columns changed, and on_schema_change holds the table
    NEW_TYPE = "new type"  # also, a column has another type, whose values the server may have computed in any way
    SKIPPED = "skipped"  # changes were committed while the configuration skipped the table
    NOT_UTF8 = "not UTF-8"
    UNDECLARED = "undeclared type"
    ON_SERVER = "on server"  # only the server has the missing values
    COLUMN_NAME = "column name"  # rows in the archive have a column name that must be changed on the server
    TORN = "torn"  # bytes that need no action, because the server sent them again
    TRANSACTION = "transaction"  # it contains unreadable bytes


CONTRACT_KINDS = (ReasonKind.CONTRACT, ReasonKind.NEW_TYPE)

TORN = "; cut off in the middle by a receiver that died: the server sent it again"

# How texts begin in ledgers up to format 3, which have no kinds
_CHANGED_COLUMNS = "its columns changed, which on_schema_change holds: "
_TRANSACTION = "transaction"


class Reason(str):  # noqa: SLOT000 # pickle restores the kind through __dict__
    """The text with its kind. Text made from a reason isn't a Reason; use `Reason(f"…{reason}", reason.kind)`."""

    kind: ReasonKind | None

    def __new__(cls, text: str, kind: ReasonKind | None = None) -> Reason:
        reason = super().__new__(cls, text)
        reason.kind = kind
        return reason

    @classmethod
    def from_json(cls, text: str) -> Reason:
        """text: from `to_json`, or a text that an older version stored without a kind."""
        if not text.startswith('{"kind": '):
            return cls.stored(text, None)
        fields = json.loads(text)
        return cls.stored(fields["text"], fields["kind"])

    @classmethod
    def stored(cls, text: str, kind: str | None) -> Reason:
        """A reason from the ledger. kind: None if it has no kind, or if an older version wrote it."""
        return cls(text, _kind_of_text(text) if kind is None else ReasonKind(kind))


def kind_of(reason: str | None) -> ReasonKind | None:
    return reason.kind if isinstance(reason, Reason) else None


def to_json(reason: str) -> str:
    return json.dumps({"kind": columns_of(reason)["reason_kind"], "text": reason})


def columns_of(reason: str | None) -> dict[str, str | None]:
    """The reason as columns of the ledger."""
    kind = kind_of(reason)
    return {"reason": reason and str(reason), "reason_kind": kind and kind.value}


def with_reason(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the ledger with a Reason instead of the two columns. An older ledger lacks `reason_kind`."""
    fields = {name: value for name, value in row.items() if name != "reason_kind"}
    text = row["reason"]
    return {**fields, "reason": None if text is None else Reason.stored(text, row.get("reason_kind"))}


def _kind_of_text(text: str) -> ReasonKind | None:
    """The kind of a reason that an older version stored. Recognizes only the kinds that change a run's behavior."""
    if text.startswith(_CHANGED_COLUMNS):
        return ReasonKind.NEW_TYPE if "column retyped: " in text else ReasonKind.CONTRACT
    if text.endswith(TORN):
        return ReasonKind.TORN
    return ReasonKind.TRANSACTION if text.startswith(_TRANSACTION) else None

"""Columns whose type became a domain.

A domain is sent as its base type, without the modifier. If it has a modifier, the server rounds or pads the column's
existing values, which the archive doesn't show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn
from pgoutput_etl.reasons import ReasonKind
from pgoutput_etl.types import UserTypes

# Types whose modifier changes values instead of rejecting them. varchar's may strip spaces, which is ignored here.
_CHANGED_BY_MODIFIER = {"numeric", "bpchar", "timestamp", "timestamptz", "time", "timetz", "interval"}


def new_domains(
    before: Relation, after: Relation, origins: Sequence[int | None], types: UserTypes
) -> tuple[RelationColumn, ...]:
    """The columns whose type has changed to a domain with a modifier that may change values. origins: old positions."""
    pairs = ((before.columns[o], new) for o, new in zip(origins, after.columns, strict=True) if o is not None)
    return tuple(new for old, new in pairs if new.type_oid != old.type_oid and _may_change(new, types))


def _may_change(column: RelationColumn, types: UserTypes) -> bool:
    """Only a domain has the name of a built-in type in its Type message. A catalog Message shows its modifier."""
    namespace, name = types.names.get(column.type_oid, ("", ""))
    return not column.types and namespace == "pg_catalog" and name in _CHANGED_BY_MODIFIER


def domain_remarks(columns: Iterable[RelationColumn]) -> tuple[str, ...]:
    """One line per column."""
    return tuple(
        f"the type of {column.name} changed to a domain, whose modifier the archive does not show: if it has one, the "
        "server rounded or padded earlier values, which are here as they were sent. Load a snapshot to have them"
        for column in dict.fromkeys(columns)
    )


def check_key(columns: Iterable[RelationColumn], key: Iterable[str]) -> None:
    """Raises TableError if one of the columns is in the key, because the server then identifies existing rows by new
    texts."""
    names = set(key)
    for column in columns:
        if column.name in names:
            raise TableError(
                f"the type of key column {column.name!r} changed to a domain, whose modifier the archive does not "
                "show, and the new form of its values is not certain",
                ReasonKind.ON_SERVER,
            )

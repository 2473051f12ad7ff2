"""Columns whose type became a domain.

A domain is sent as its base type without its modifier. If it has one, the server rounds or pads the values that the
column had, and the archive does not show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn
from pgoutput_etl.reasons import ReasonKind
from pgoutput_etl.types import UserTypes

# Types whose modifier changes values instead of refusing them. varchar's may cut spaces off, which is left aside.
_CHANGED_BY_MODIFIER = {"numeric", "bpchar", "timestamp", "timestamptz", "time", "timetz", "interval"}


def new_domains(
    before: Relation, after: Relation, origins: Sequence[int | None], types: UserTypes
) -> tuple[RelationColumn, ...]:
    """The columns whose type is another one now, a domain whose modifier may change values. origins: old positions."""
    pairs = ((before.columns[o], new) for o, new in zip(origins, after.columns, strict=True) if o is not None)
    return tuple(new for old, new in pairs if new.type_oid != old.type_oid and _may_change(new, types))


def _may_change(column: RelationColumn, types: UserTypes) -> bool:
    """Only a domain has the name of a built-in type in its Type message. A catalog Message tells its modifier."""
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
    """Raises TableError if the key has one of the columns, because the server names existing rows by new texts."""
    names = set(key)
    for column in columns:
        if column.name in names:
            raise TableError(
                f"the type of key column {column.name!r} changed to a domain, whose modifier the archive does not "
                "show, and the new form of its values is not certain",
                ReasonKind.ON_SERVER,
            )

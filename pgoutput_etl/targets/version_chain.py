"""A table's successive versions: its configured key in each, and the declarations that they need."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn
from pgoutput_etl.schema.column_matching import UndecidedError, declaration
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.diff import lineage

Columns = tuple[RelationColumn, ...]


def key_by_version(
    key: tuple[str, ...], chain: Sequence[Relation], declarations: Declarations
) -> dict[Columns, tuple[str, ...]]:
    """The configured key's columns in each version; they may have been renamed before or after they were configured.
    declarations: as of the first step."""
    declarations = declarations.copy()
    steps = [_origins(old, new, declarations) for old, new in pairwise(chain)]
    named = [i for i, relation in enumerate(chain) if set(key) <= {column.name for column in relation.columns}]
    if not named:
        return {relation.columns: key for relation in chain}  # table_shape will reject it
    last = named[-1]
    names = [column.name for column in chain[last].columns]
    places: dict[int, list[int | None]] = {last: [names.index(name) for name in key]}
    for i in range(last, 0, -1):
        places[i - 1] = [None if place is None else steps[i - 1][place] for place in places[i]]
    for i in range(last, len(steps)):
        successors = {origin: place for place, origin in enumerate(steps[i])}
        places[i + 1] = [None if place is None else successors.get(place) for place in places[i]]
    return {
        relation.columns: tuple(
            name if place is None else relation.columns[place].name for place, name in zip(places[i], key, strict=True)
        )
        for i, relation in enumerate(chain)
    }


def _origins(old: Relation, new: Relation, declarations: Declarations) -> tuple[int | None, ...]:
    """Matches by name where columns can't be identified: the table is then held, or a truncate has removed its rows."""
    try:
        return lineage(old, new, declarations).origins
    except TableError:
        places = {column.name: place for place, column in enumerate(old.columns)}
        return tuple(places.get(column.name) for column in new.columns)


def with_later_steps(error: TableError, chain: Sequence[Relation], declarations: Declarations) -> TableError:
    """The error, with a single list of declarations if several steps of the history need some. declarations: as of
    before the history."""
    choices = error.choices if isinstance(error, UndecidedError) else ()
    together = declarations.likeliest([relation.columns for relation in chain]) if choices else {}
    listed = f"{error}. The likeliest for all changes of this table: {declaration(together)}"
    return error if not choices or declaration(together) in str(error) else TableError(listed)

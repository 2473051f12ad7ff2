"""Records when a table's columns were changed, because the server may then have changed the values of older rows
without sending them: `ADD COLUMN … DEFAULT` gives all rows a value, and `ALTER COLUMN … TYPE … USING` replaces their
values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.diff import Lineage
from pgoutput_etl.schema.table_shape import NEVER, TableShape

# By column, the LSN of the first commit after it was added or retyped. Other columns are missing.
ChangedAt = Mapping[str, int]


def changed_at(known: ChangedAt, before: Relation, after: Relation, step: Lineage, lsn: int) -> ChangedAt:
    """When each of the newer version's columns changed. known: the same for the older version's columns. lsn: of the
    first commit under the newer version."""
    changed: dict[str, int] = {}
    for column, origin in zip(after.columns, step.origins, strict=True):
        old = None if origin is None else before.columns[origin]
        if old is None and before.catalog and after.catalog and not step.is_rewritten:
            continue  # the values of older rows are known
        if old is None or old.full_type != column.full_type:
            changed[column.name] = lsn
        elif old.name in known:
            changed[column.name] = known[old.name]
    return changed


def with_changes(shape: TableShape, changed: ChangedAt) -> TableShape:
    if not changed:
        return shape
    return replace(shape, changed_at=tuple(changed.get(column.name, NEVER) for column in shape.columns))


def changes_of(shape: TableShape) -> ChangedAt:
    """The inverse of `with_changes`."""
    pairs = zip(shape.columns, shape.changed_at, strict=bool(shape.changed_at))
    return {column.name: lsn for column, lsn in pairs if lsn != NEVER}

"""The values of stored rows, in the form that a search compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pgoutput_etl.changes.row_search import ColumnId, RowImage, Text
from pgoutput_etl.types import ColumnType
from pgoutput_etl.types.canonical_text import canonical_texts

Columns = tuple[tuple[ColumnId, ColumnType], ...]  # with the types that the texts have


def row_images(texts: Iterable[Sequence[Text]], columns: Columns) -> Iterator[RowImage]:
    """The images of rows, from columns of texts."""
    ids = [column for column, _ in columns]
    spelled = (canonical_texts(own_type, own) for (_, own_type), own in zip(columns, texts, strict=True))
    for row in zip(*spelled, strict=True):
        yield dict(zip(ids, row, strict=True))

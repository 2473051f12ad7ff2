"""Values as PostgreSQL prints them under its default settings, whatever form and settings they were sent in."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgoutput_etl.types.column import ColumnType, load_binary
from pgoutput_etl.types.printing import print_text
from pgoutput_etl.types.registry import load_text


def canonical_texts(column_type: ColumnType, values: Sequence[bytes | None], binary: bool) -> list[bytes | None]:
    """The texts under DateStyle ISO, TimeZone UTC and bytea_output hex, with the shortest exact digits of floats.

    Raises ValueTextError for a value that is not of the type, and OverflowError for more than a column holds.
    """
    loaded = (load_binary if binary else load_text)(column_type, values)
    is_text = pa.types.is_string(column_type.arrow) and column_type.printer is None
    array = loaded.array
    texts: list[bytes | None] = array.cast(pa.binary()).to_pylist() if is_text else print_text(column_type, array)
    for i, text in loaded.unrepresentable.items():
        texts[i] = text.encode()
    return texts

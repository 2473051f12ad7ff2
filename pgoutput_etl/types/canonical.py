"""Values as PostgreSQL prints them under settings of its own defaults, whatever form and settings they were sent in."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pgoutput_etl.types.column import ColumnType, load_binary
from pgoutput_etl.types.printing import print_text
from pgoutput_etl.types.registry import load_text


def canonical_texts(of: ColumnType, values: Sequence[bytes | None], binary: bool) -> list[bytes | None]:
    """DateStyle ISO, TimeZone UTC, bytea_output hex, as many digits of a float as tell it from all others.

    Raises ValueTextError for what is none of the type's, and OverflowError for more than a column holds.
    """
    loaded = (load_binary if binary else load_text)(of, values)
    is_text = pa.types.is_string(of.arrow) and of.prints is None
    texts: list[bytes | None] = loaded.array.cast(pa.binary()).to_pylist() if is_text else print_text(of, loaded.array)
    for i, text in loaded.unrepresentable.items():
        texts[i] = text.encode()
    return texts

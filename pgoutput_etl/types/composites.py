"""Values of composite types (`create type … as (…)`), as PostgreSQL's text of the row.

Text: record_out, "8.16.6. Composite Type Input and Output Syntax". Binary: record_send
(src/backend/utils/adt/rowtypes.c).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from pgoutput_etl.types.binary import ValueReader
from pgoutput_etl.types.column import RefusedError, bounded
from pgoutput_etl.types.quoting import quoted

EXPECTED = "a row as record_send writes it"


_must_quote = re.compile(rb'^$|["\\(),\s]').search


def record_text(value: bytes, field_text: Callable[[int, bytes], bytes]) -> bytes:
    """What record_out prints for a row in binary form: int32 number of fields; of each its type's OID, int32 length
    (-1: NULL) and the value's own binary form, which `field_text` turns to text. RefusedError where it is no row.
    """
    sent = ValueReader(value, EXPECTED)
    fields = [(sent.uint32(), sent.sized()) for _ in range(sent.count(8))]
    sent.end()
    texts = (b"" if field is None else quoted(field_text(oid, field), _must_quote) for oid, field in fields)
    return b"(" + b",".join(bounded(texts)) + b")"


def is_record(value: bytes) -> bool:
    """Whether the bytes are a row's, as far as lengths and OIDs say."""
    sent = ValueReader(value, EXPECTED)
    try:
        for _ in range(sent.count(8)):
            if sent.uint32() == 0:
                return False
            sent.sized()
        sent.end()
    except RefusedError:
        return False
    return True

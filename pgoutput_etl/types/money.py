"""money, as text.

The text follows the sender's lc_monetary. The binary form is an integer count of the smallest unit of an unknown
currency, printed here as with lc_monetary C: ``$1,234.56`` and ``-$1.00``. Use the text form
for senders with another lc_monetary.
"""

from __future__ import annotations

from pgoutput_etl.types.binary import INT64, number
from pgoutput_etl.types.column import TypeTable, always
from pgoutput_etl.types.strings import string_type


def money_text(value: bytes) -> bytes:
    cents = number(INT64, value, "an amount of money of 8 bytes")
    whole, fraction = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{fraction:02d}".encode("ascii")


TYPES: TypeTable = {
    790: always(string_type("money", money_text)),
}

"""money, as text. How it is printed depends on the sender's lc_monetary, which its text shows and its binary form
does not say: that is an integer of the smallest unit, of whatever currency. It is printed here as with lc_monetary C,
``$1,234.56`` and ``-$1.00``; a sender with another one should be read in text form.
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

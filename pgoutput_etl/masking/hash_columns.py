"""Hashes the values of a masked column: HMAC-SHA-256 of the text that PostgreSQL prints for a value.

`Salt` computes the HMAC. Equal values have equal hashes, whether the server sent them as text or as binary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pgoutput_etl.changes.tuple_columns import SplitTuples
from pgoutput_etl.config.column_rules import ColumnRule, Salt
from pgoutput_etl.protocol.messages import TupleData
from pgoutput_etl.reasons import Reason, kind_of
from pgoutput_etl.types import ColumnType, ValueTextError
from pgoutput_etl.types.kernels.dispatch import BINARY
from pgoutput_etl.types.printing import canonical_texts

HASH_SIZE = 64  # hexadecimal digits
LENGTH = BINARY - 1

_BATCH_VALUES = 4096

_TEXT, _BINARY = b"tb"


def hash_column(
    split: SplitTuples, place: int, column_type: ColumnType, rule: ColumnRule, out: npt.NDArray[np.uint8]
) -> None:
    """Raises ValueTextError for a value that isn't of the type."""
    salt, at, size = _salt(rule), split.at[place], split.size[place]
    content = memoryview(split.data)  # type: ignore[arg-type]
    for binary in (False, True):
        chosen = np.flatnonzero((size >= 0) & ((size & BINARY != 0) == binary))
        for begin in range(0, len(chosen), _BATCH_VALUES):
            part = chosen[begin : begin + _BATCH_VALUES]
            begins, lengths = at[part].tolist(), (size[part] & LENGTH).tolist()
            values = [bytes(content[b : b + n]) for b, n in zip(begins, lengths, strict=True)]
            hashes = salt.hashed(text or b"" for text in canonical_texts(column_type, values, binary))
            out[part] = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH_SIZE)


def hash_values(
    column_type: ColumnType, rule: ColumnRule, tuples: Mapping[int, TupleData], place: int
) -> tuple[dict[int, bytes], dict[int, str]]:
    """The hashes of a column's values, by tuple, and the errors of values that can't be hashed."""
    texts: dict[int, bytes] = {}
    faults: dict[int, str] = {}

    def add(indices: Sequence[int], binary: bool) -> None:
        try:
            printed = canonical_texts(column_type, [tuples[i].values[place] for i in indices], binary)
        except (ValueTextError, OverflowError) as error:
            if len(indices) > 1:
                for i in indices:
                    add([i], binary)
            else:
                expected = error.expected if isinstance(error, ValueTextError) else "a value of fewer bytes"
                faults[indices[0]] = Reason(f"expected {expected}", kind_of(expected))
        else:
            texts.update((i, text) for i, text in zip(indices, printed, strict=True) if text is not None)

    for form in (_TEXT, _BINARY):
        indices = [i for i, data in tuples.items() if data.kinds[place] == form]
        for begin in range(0, len(indices), _BATCH_VALUES):
            add(indices[begin : begin + _BATCH_VALUES], form == _BINARY)
    return dict(zip(texts, _salt(rule).hashed(texts.values()), strict=True)), faults


def _salt(rule: ColumnRule) -> Salt:
    assert rule.salt is not None
    return rule.salt

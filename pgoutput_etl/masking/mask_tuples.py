"""Masks the tuples of one relation version: drops columns, and replaces others with a hash or with text.

Kernels mask whole arrays. A readable twin handles everything else, tuple by tuple, and reports errors. A tuple that
can't be masked is withheld: it is replaced by the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl import jit
from pgoutput_etl.changes.events import WITHHELD, width_error
from pgoutput_etl.changes.tuple_columns import NULL, UNCHANGED, RawTuples, split_tuples
from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule
from pgoutput_etl.masking.hash_columns import HASH_SIZE, LENGTH, hash_column, hash_values
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import KIND_BINARY, KIND_NULL, KIND_TEXT, KIND_UNCHANGED, RelationColumn, TupleData
from pgoutput_etl.reasons import Reason, kind_of, to_json
from pgoutput_etl.types import ColumnType, ValueTextError
from pgoutput_etl.types.kernels.dispatch import UnsureError

_KEEP, _DROP, _HASH, _REDACT = range(4)

_ACTIONS = {ColumnAction.DROP: _DROP, ColumnAction.HASH: _HASH, ColumnAction.REDACT: _REDACT}

_MAX_BYTES = np.iinfo(np.int32).max

Bytes = npt.NDArray[np.uint8]

Unchanged = list[list[int] | None]


@dataclass(frozen=True, slots=True)
class MaskedVersion:
    """The columns of one version's tuples. rules: of masked columns; types: of hashed columns; both by position. If
    there are no columns, no Relation message describes the tuples."""

    columns: tuple[RelationColumn, ...]
    rules: Mapping[int, ColumnRule]
    types: Mapping[int, ColumnType]

    def mask(self, tuples: pa.Array) -> pa.Array:
        """Masks a binary array; NULL stays NULL."""
        if jit.AVAILABLE and self.columns:
            try:
                return self._mask_compiled(tuples)
            except (UnsureError, OverflowError, ValueTextError):
                pass
        values: list[bytes | None] = tuples.to_pylist()
        masked = iter(self.mask_readable([data for data in values if data is not None]))
        return pa.array([None if data is None else next(masked) for data in values], tuples.type)

    def _mask_compiled(self, tuples: pa.Array) -> pa.Array:
        raw = RawTuples.of(tuples)
        split = split_tuples(raw, len(self.columns))
        hashes = np.zeros((max(len(self.types), 1), len(raw), HASH_SIZE), np.uint8)
        for n, (place, column_type) in enumerate(sorted(self.types.items())):
            hash_column(split, place, column_type, self.rules[place], hashes[n])
        actions = np.full(len(self.columns), _KEEP, np.uint8)
        number = np.zeros(len(self.columns), np.int64)
        texts = [self.rules[i].text.encode() if i in self.rules else b"" for i in range(len(self.columns))]
        for place, rule in self.rules.items():
            actions[place] = _ACTIONS[rule.action]
            number[place] = sorted(self.types).index(place) if rule.action is ColumnAction.HASH else 0
        ends = np.cumsum([len(text) for text in texts])
        replacements = np.frombuffer(b"".join(texts), np.uint8)
        longest = int(max(len(text) for text in texts))
        room = len(split.data) + len(raw) * (2 + (HASH_SIZE + 5) * len(self.types) + (longest + 5) * len(self.rules))
        if room > _MAX_BYTES:
            raise OverflowError
        out = np.empty(room, np.uint8)
        offsets = np.zeros(len(raw) + 1, np.int32)
        data = split.data.view()
        data.flags.writeable = False
        places = raw.starts, split.at, split.size
        size = _write(data, *places, actions, number, hashes, replacements, ends, out, offsets)
        validity = tuples.is_valid() if tuples.null_count else None
        buffers = [None if validity is None else validity.buffers()[1], pa.py_buffer(offsets), pa.py_buffer(out[:size])]
        return pa.Array.from_buffers(pa.binary(), len(raw), buffers, tuples.null_count)

    def mask_readable(self, tuples: Sequence[bytes]) -> list[bytes]:
        if not self.columns:
            return [_withheld("no Relation message describes it")] * len(tuples)
        parsed = [read_tuple(data) for data in tuples]
        width = len(self.columns)
        errors = {i: width_error(data, width) for i, data in enumerate(parsed) if len(data.kinds) != width}
        valid = {i: data for i, data in enumerate(parsed) if i not in errors}
        hashed: dict[int, dict[int, bytes]] = {}
        for place, column_type in self.types.items():
            hashed[place], faults = hash_values(column_type, self.rules[place], valid, place)
            errors |= {
                i: Reason(f"column {self.columns[place].name!r} can't be hashed: {why}", kind_of(why))
                for i, why in faults.items()
            }
        return [
            _withheld(errors[i]) if i in errors else self._rebuilt(data, {p: h.get(i) for p, h in hashed.items()})
            for i, data in enumerate(parsed)
        ]

    def _rebuilt(self, data: TupleData, hashes: Mapping[int, bytes | None]) -> bytes:
        kinds, values = bytearray(), []
        for place, (kind, value) in enumerate(zip(data.kinds, data.values, strict=True)):
            rule = self.rules.get(place)
            if rule is None:
                kinds.append(kind)
                values.append(value)
            elif rule.action is ColumnAction.HASH:
                kinds.append(KIND_TEXT if kind in (KIND_TEXT, KIND_BINARY) else kind)
                values.append(hashes[place])
            elif rule.action is ColumnAction.REDACT:
                # Unchanged TOAST is not NULL, so it is redacted like any value.
                kinds.append(KIND_NULL if kind == KIND_NULL else KIND_TEXT)
                values.append(None if kind == KIND_NULL else rule.text.encode())
        return TupleData(bytes(kinds), tuple(values)).to_bytes()


def unchanged_in(tuples: pa.Array, had_some: pa.Array) -> Unchanged:
    """The positions of unchanged TOAST in each masked tuple; None if it has none. had_some: true for tuples that had
    some before masking."""
    unchanged: Unchanged = [None] * len(tuples)
    for i in pc.indices_nonzero(had_some).to_pylist():
        data = tuples[i].as_py()
        if data is not None and not data.startswith(WITHHELD):
            unchanged[i] = list(read_tuple(data).unchanged()) or None
    return unchanged


@jit.compiled
def _write(
    data: Any, starts: Any, at: Any, size: Any, actions: Any, number: Any, hashes: Any, replacements: Any,
    ends: Any, out: Any, offsets: Any,
) -> int:  # fmt: skip
    """Writes tuple i to out[offsets[i]:offsets[i + 1]]. Returns the total number of bytes."""
    kept = 0
    for action in actions:
        kept += action != _DROP
    p = 0
    for i in range(starts.shape[0]):
        if starts[i] >= 0:
            out[p], out[p + 1] = kept >> 8, kept & 255
            p += 2
            for c in range(actions.shape[0]):
                action, s = actions[c], size[c, i]
                if action == _DROP:
                    continue
                if s == NULL or (s == UNCHANGED and action != _REDACT):
                    out[p] = KIND_NULL if s == NULL else KIND_UNCHANGED
                    p += 1
                elif action == _KEEP:
                    p = _copied(data, np.int64(at[c, i]) - 5, np.int64(s & LENGTH) + 5, out, p)
                elif action == _HASH:
                    p = _text_begun(HASH_SIZE, out, p)
                    p = _copied(hashes[number[c], i], 0, HASH_SIZE, out, p)
                else:
                    first = ends[c - 1] if c > 0 else np.int64(0)
                    p = _text_begun(ends[c] - first, out, p)
                    p = _copied(replacements, first, ends[c] - first, out, p)
        offsets[i + 1] = p
    return p


@jit.inlined
def _copied(data: Any, begin: Any, length: Any, out: Any, p: Any) -> Any:
    for k in range(length):
        out[p + k] = data[begin + k]
    return p + length


@jit.inlined
def _text_begun(length: Any, out: Any, p: Any) -> Any:
    out[p] = KIND_TEXT
    for k in range(4):
        out[p + 1 + k] = (length >> (24 - 8 * k)) & 255
    return p + 5


def _withheld(reason: str) -> bytes:
    return WITHHELD + to_json(reason).encode()

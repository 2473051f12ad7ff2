"""Loads columns of cells by kernels, with the same results as load_text and load_binary.

A kernel writes the values that it is certain of straight into the Arrow array's memory. All others, and all values of
types without a kernel, go through the type's loaders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgoutput_etl.jit import PADDING
from pgoutput_etl.types.boolean import load_bool
from pgoutput_etl.types.bytea import load_bytea
from pgoutput_etl.types.column import ColumnType, LoadedColumn, load_binary
from pgoutput_etl.types.datetimes import load_date, load_timestamp, load_timestamptz
from pgoutput_etl.types.documents import fast_binary_versioned
from pgoutput_etl.types.floats import load_float
from pgoutput_etl.types.identifiers import uuid_text
from pgoutput_etl.types.integers import load_signed, load_unsigned
from pgoutput_etl.types.kernels import datetimes as datetime_kernels
from pgoutput_etl.types.kernels import floats as float_kernels
from pgoutput_etl.types.kernels import numbers as number_kernels
from pgoutput_etl.types.kernels import texts as text_kernels
from pgoutput_etl.types.numeric import load_decimal
from pgoutput_etl.types.registry import load_text
from pgoutput_etl.types.strings import fast_binary_string, load_string

Numbers: TypeAlias = NDArray[Any]

BINARY = int(number_kernels.BINARY)


class UnsureError(Exception):
    """Raised by the compiled twin for input that is left to the readable code, which reports any error."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The requested values of one column of tuples.

    data: uint8, the bytes of the tuples; at least seven bytes precede each value.
    at: uint32 per tuple, the value's offset in data.
    size: int32 per tuple, the value's length in bytes, with the bit BINARY if it is in binary form; negative if absent.
    chosen: int32 per requested value, its tuple, or -1 for NULL.
    """

    data: Numbers
    at: Numbers
    size: Numbers
    chosen: Numbers

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def sizes(self) -> Numbers:
        """The sizes of the requested values; -1 for NULL."""
        sizes: Numbers = np.where(self.chosen >= 0, self.size[self.chosen], np.int32(-1))
        return sizes

    def take(self, indices: Numbers) -> Cells:
        return Cells(self.data, self.at, self.size, self.chosen[indices])

    def to_arrow(self) -> pa.Array:
        """The values' bytes, unchanged, in either form."""
        offsets, valid, _odd = _offsets(self, text_kernels.text_offsets, text_kernels.AS_TEXT)
        out = np.empty(int(offsets[-1]) + PADDING, np.uint8)
        text_kernels.cells(*self._arguments(), offsets, out)
        return _array(pa.binary(), valid, offsets, out[: offsets[-1]])

    def _arguments(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        return self.data, self.at, self.size, self.chosen


Kernel: TypeAlias = Callable[[ColumnType, Cells], tuple[pa.Array, Numbers]]  # the array, and the odd indices


def load_cells(column_type: ColumnType, cells: Cells) -> LoadedColumn:
    """Raises UnsureError, and the errors of the type's loaders."""
    kernel = _KERNELS.get(column_type.text_loader)
    if kernel is None:
        return _load_carefully(column_type, cells)
    array, odd = kernel(column_type, cells)
    if not len(odd):
        return LoadedColumn(array, {})
    loaded = _load_carefully(column_type, cells.take(odd))
    positions = np.arange(len(cells))
    positions[odd] = len(cells) + np.arange(len(odd))
    array = pa.concat_arrays([array, loaded.array]).take(pa.array(positions))
    return LoadedColumn(array, {int(odd[i]): text for i, text in loaded.unrepresentable.items()})


def are_texts(cells: Cells) -> bool:
    """True if all values in text form are UTF-8."""
    return text_kernels.first_not_utf8(*cells._arguments()) < 0


def _load_carefully(column_type: ColumnType, cells: Cells) -> LoadedColumn:
    if not are_texts(cells):
        raise UnsureError
    sizes = cells.sizes
    binary = (sizes >= 0) & (sizes & BINARY != 0)
    values = cells.to_arrow().to_pylist()
    if not binary.any():
        return load_text(column_type, values)
    if binary[sizes >= 0].all():
        return load_binary(column_type, values)
    cases = list(zip(values, binary, strict=True))
    from_text = load_text(column_type, [None if is_binary else value for value, is_binary in cases])
    from_binary = load_binary(column_type, [value if is_binary else None for value, is_binary in cases])
    positions = np.arange(len(cells)) + len(cells) * binary
    array = pa.concat_arrays([from_text.array, from_binary.array]).take(pa.array(positions))
    return LoadedColumn(array, {**from_text.unrepresentable, **from_binary.unrepresentable})


def _array(arrow: pa.DataType, valid: Numbers, *buffers: Numbers) -> pa.Array:
    validity = None if valid.min(initial=1) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(valid), [validity, *map(pa.py_buffer, buffers)])


def _outputs(cells: Cells) -> tuple[Numbers, Numbers]:
    """The kernel outputs `valid` and `odd`."""
    return np.empty(len(cells), np.uint8), np.empty(len(cells), np.int32)


def _integers(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _outputs(cells)
    out = np.empty(len(cells), np.int64)
    is_signed = column_type.text_loader is load_signed
    bits = column_type.arrow.bit_width if is_signed else 32
    low = np.uint64(2 ** (bits - 1) if is_signed else 0)
    high = np.uint64(2 ** (bits - 1) - 1 if is_signed else 2**bits - 1)
    odd_count = number_kernels.integers(*cells._arguments(), bits // 8, low, high, out, valid, odd)
    numbers = out.astype(f"i{column_type.arrow.bit_width // 8}", copy=False)
    return _array(column_type.arrow, valid, numbers), odd[:odd_count]


def _booleans(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _outputs(cells)
    out = np.empty(len(cells), np.uint8)
    odd_count = number_kernels.booleans(*cells._arguments(), out, valid, odd)
    return _array(column_type.arrow, valid, np.packbits(out, bitorder="little")), odd[:odd_count]


def _floats(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _outputs(cells)
    width = column_type.arrow.bit_width // 8
    out = np.empty(len(cells), f"f{width}")
    one = np.empty(1, np.float64)
    odd_count = float_kernels.floats(
        *cells._arguments(), width, out, out.view(f"u{width}"), one, one.view(np.uint64), valid, odd
    )
    return _array(column_type.arrow, valid, out), odd[:odd_count]


def _decimals(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _outputs(cells)
    out = np.empty(2 * len(cells), np.uint64)
    precision, scale = column_type.arrow.precision, column_type.arrow.scale
    odd_count = number_kernels.decimals(*cells._arguments(), precision, scale, out, valid, odd)
    return _array(column_type.arrow, valid, out), odd[:odd_count]


def _dates(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _outputs(cells)
    out = np.empty(len(cells), np.int32)
    odd_count = datetime_kernels.dates(*cells._arguments(), out, valid, odd)
    return _array(column_type.arrow, valid, out), odd[:odd_count]


def _timestamps(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _outputs(cells)
    out = np.empty(len(cells), np.int64)
    with_zone = column_type.text_loader is load_timestamptz
    odd_count = datetime_kernels.timestamps(*cells._arguments(), with_zone, out, valid, odd)
    return _array(column_type.arrow, valid, out), odd[:odd_count]


def _offsets(cells: Cells, kernel: Callable[..., int], *arguments: int) -> tuple[Numbers, Numbers, Numbers]:
    valid, odd = _outputs(cells)
    offsets = np.empty(len(cells) + 1, np.int32)
    odd_count = kernel(*cells._arguments(), *arguments, offsets, valid, odd)
    if odd_count < 0:
        raise OverflowError("2 GiB or more of values in one column of a batch; make the batch smaller")
    return offsets, valid, odd[:odd_count]


def _texts(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    form = text_kernels.NO_FORM
    if column_type.fast_binary is fast_binary_string:
        form = text_kernels.AS_TEXT
    elif column_type.fast_binary is fast_binary_versioned:
        form = text_kernels.VERSIONED
    elif column_type.binary_text is uuid_text:
        form = text_kernels.UUID
    offsets, valid, odd = _offsets(cells, text_kernels.text_offsets, form)
    out = np.empty(int(offsets[-1]) + PADDING, np.uint8)
    if text_kernels.texts(*cells._arguments(), form, offsets, out) < 0:
        raise UnsureError
    return _array(column_type.arrow, valid, offsets, out[: offsets[-1]]), odd


def _bytea(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    offsets, valid, odd = _offsets(cells, text_kernels.bytea_offsets)
    out = np.empty(int(offsets[-1]) + PADDING, np.uint8)
    if text_kernels.bytea(*cells._arguments(), offsets, out) < 0:
        raise UnsureError
    return _array(column_type.arrow, valid, offsets, out[: offsets[-1]]), odd


_KERNELS: dict[Any, Kernel] = {
    load_signed: _integers,
    load_unsigned: _integers,
    load_bool: _booleans,
    load_float: _floats,
    load_decimal: _decimals,
    load_date: _dates,
    load_timestamp: _timestamps,
    load_timestamptz: _timestamps,
    load_string: _texts,
    load_bytea: _bytea,
}

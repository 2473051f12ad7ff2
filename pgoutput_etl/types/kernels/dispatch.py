"""Loads columns of cells with kernels. The results equal those of load_text and load_binary.

A kernel writes the values that it is certain of directly to the Arrow array's memory. All other values, and all values
of types without a kernel, go through the type's loaders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgoutput_etl.jit import PADDING
from pgoutput_etl.types.column import ColumnType, LoadedColumn, load_mixed, replace_at
from pgoutput_etl.types.datetimes import load_date, load_timestamp, load_timestamptz
from pgoutput_etl.types.documents import fast_binary_versioned
from pgoutput_etl.types.identifiers import uuid_text
from pgoutput_etl.types.kernels import datetimes as datetime_kernels
from pgoutput_etl.types.kernels import floats as float_kernels
from pgoutput_etl.types.kernels import numbers as number_kernels
from pgoutput_etl.types.kernels import texts as text_kernels
from pgoutput_etl.types.numbers import load_bool, load_float, load_signed, load_unsigned
from pgoutput_etl.types.numeric import load_decimal
from pgoutput_etl.types.strings import fast_binary_string, load_bytea, load_string

Numbers: TypeAlias = NDArray[Any]

BINARY = int(number_kernels.BINARY)


class UnsureError(Exception):
    """Raised by the compiled twin for input that it leaves to the readable code, which reports any error."""


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
        return _strings(pa.binary(), self, text_kernels.AS_IS)[0]

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
    return LoadedColumn(
        replace_at(array, odd, loaded.array), {int(odd[i]): text for i, text in loaded.unrepresentable.items()}
    )


def _load_carefully(column_type: ColumnType, cells: Cells) -> LoadedColumn:
    sizes = cells.sizes
    binary_at = np.flatnonzero((sizes >= 0) & (sizes & BINARY != 0)).tolist()
    return load_mixed(column_type, cells.to_arrow().to_pylist(), binary_at)


def _array(arrow: pa.DataType, states: Numbers, *buffers: Numbers) -> pa.Array:
    validity = None if states.min(initial=1) else pa.py_buffer(np.packbits(states, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(states), [validity, *map(pa.py_buffer, buffers)])


def _run(kernel: Callable[..., None], cells: Cells, *arguments: Any) -> tuple[Numbers, Numbers]:
    """The states of the values, and the indices of odd ones."""
    states = np.empty(len(cells), np.uint8)
    kernel(*cells._arguments(), *arguments, states)
    return states, np.flatnonzero(states == number_kernels.ODD)


def _integers(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    out = np.empty(len(cells), np.int64)
    is_signed = column_type.text_loader == load_signed
    bits = column_type.arrow.bit_width if is_signed else 32
    low = np.uint64(2 ** (bits - 1) if is_signed else 0)
    high = np.uint64(2 ** (bits - 1) - 1 if is_signed else 2**bits - 1)
    states, odd = _run(number_kernels.integers, cells, bits // 8, low, high, out)
    return _array(column_type.arrow, states, out.astype(f"i{column_type.arrow.bit_width // 8}", copy=False)), odd


def _booleans(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    out = np.empty(len(cells), np.uint8)
    states, odd = _run(number_kernels.booleans, cells, out)
    return _array(column_type.arrow, states, np.packbits(out, bitorder="little")), odd


def _floats(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    width = column_type.arrow.bit_width // 8
    out, one = np.empty(len(cells), f"f{width}"), np.empty(1, np.float64)
    states, odd = _run(float_kernels.floats, cells, width, out, out.view(f"u{width}"), one, one.view(np.uint64))
    return _array(column_type.arrow, states, out), odd


def _decimals(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    out = np.empty(2 * len(cells), np.uint64)
    precision, scale = column_type.arrow.precision, column_type.arrow.scale
    states, odd = _run(number_kernels.decimals, cells, precision, scale, out)
    return _array(column_type.arrow, states, out), odd


def _dates(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    out = np.empty(len(cells), np.int32)
    states, odd = _run(datetime_kernels.dates, cells, out)
    return _array(column_type.arrow, states, out), odd


def _timestamps(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    out = np.empty(len(cells), np.int64)
    states, odd = _run(datetime_kernels.timestamps, cells, column_type.text_loader == load_timestamptz, out)
    return _array(column_type.arrow, states, out), odd


def _strings(arrow: pa.DataType, cells: Cells, form: int) -> tuple[pa.Array, Numbers]:
    offsets = np.empty(len(cells) + 1, np.int32)
    states, odd = _run(text_kernels.text_offsets, cells, form, offsets)
    if offsets[-1] < 0:
        raise OverflowError("2 GiB or more of values in one column of a batch; make the batch smaller")
    out = np.empty(int(offsets[-1]) + PADDING, np.uint8)
    copy = text_kernels.bytea if form == text_kernels.HEX else text_kernels.texts
    if copy(*cells._arguments(), form, offsets, out) < 0:
        raise UnsureError
    return _array(arrow, states, offsets, out[: offsets[-1]]), odd


def _texts(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    form = text_kernels.NO_FORM
    if column_type.fast_binary is fast_binary_string:
        form = text_kernels.AS_TEXT
    elif column_type.fast_binary is fast_binary_versioned:
        form = text_kernels.VERSIONED
    elif column_type.binary_text is uuid_text:
        form = text_kernels.UUID
    return _strings(column_type.arrow, cells, form)


def _bytea(column_type: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    return _strings(column_type.arrow, cells, text_kernels.HEX)


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

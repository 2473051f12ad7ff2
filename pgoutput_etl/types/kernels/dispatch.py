"""Columns of cells to Arrow arrays by kernels, equal to what load_text and load_binary make of the same values.

A kernel (number_kernels.py, float_kernels.py, datetime_kernels.py, text_kernels.py) reads the texts that it is sure of,
straight into the array's memory. The others, and all of a type that has no kernel, go through the type's own loaders.
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
    """What kernels leave to the readable code, which says what is wrong if something is."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One column of tuples, and which of them are wanted.

    data: bytes, uint8. Per tuple: at, where the value begins in it, uint32; size, its length in bytes, with the bit
    BINARY if it is in binary form, or less than 0 if it is none, int32. chosen: per wanted value its tuple, int32; -1
    for NULL. A value in data has at least seven bytes before it.
    """

    data: Numbers
    at: Numbers
    size: Numbers
    chosen: Numbers

    def __len__(self) -> int:
        return len(self.chosen)

    @property
    def sizes(self) -> Numbers:
        """Of the wanted values; -1 for NULL."""
        wanted: Numbers = np.where(self.chosen >= 0, self.size[self.chosen], np.int32(-1))
        return wanted

    def only(self, places: Numbers) -> Cells:
        return Cells(self.data, self.at, self.size, self.chosen[places])

    def to_arrow(self) -> pa.Array:
        """The bytes as they are, of either form."""
        offsets, valid, _odd = _places(self, text_kernels.text_places, text_kernels.AS_TEXT)
        out = np.empty(int(offsets[-1]) + PADDING, np.uint8)
        text_kernels.cells(*self._arguments(), offsets, out)
        return _array(pa.binary(), valid, offsets, out[: offsets[-1]])

    def _arguments(self) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        return self.data, self.at, self.size, self.chosen


Kernel: TypeAlias = Callable[[ColumnType, Cells], tuple[pa.Array, Numbers]]  # the array, and the odd ones in it


def load_cells(of: ColumnType, cells: Cells) -> LoadedColumn:
    """Raises UnsureError, or what the type's loaders raise."""
    kernel = _KERNELS.get(of.text_loader)
    if kernel is None:
        return _load_carefully(of, cells)
    array, odd = kernel(of, cells)
    if not len(odd):
        return LoadedColumn(array, {})
    loaded = _load_carefully(of, cells.only(odd))
    places = np.arange(len(cells))
    places[odd] = len(cells) + np.arange(len(odd))
    array = pa.concat_arrays([array, loaded.array]).take(pa.array(places))
    return LoadedColumn(array, {int(odd[i]): text for i, text in loaded.unrepresentable.items()})


def are_texts(cells: Cells) -> bool:
    """Whether those in text form are UTF-8."""
    return text_kernels.first_not_utf8(*cells._arguments()) < 0


def _load_carefully(of: ColumnType, cells: Cells) -> LoadedColumn:
    if not are_texts(cells):
        raise UnsureError
    sizes = cells.sizes
    binary = (sizes >= 0) & (sizes & BINARY != 0)
    values = cells.to_arrow().to_pylist()
    if not binary.any():
        return load_text(of, values)
    if binary[sizes >= 0].all():
        return load_binary(of, values)
    texts = load_text(of, [None if is_binary else value for value, is_binary in zip(values, binary, strict=True)])
    others = load_binary(of, [value if is_binary else None for value, is_binary in zip(values, binary, strict=True)])
    places = np.arange(len(cells)) + len(cells) * binary
    array = pa.concat_arrays([texts.array, others.array]).take(pa.array(places))
    return LoadedColumn(array, {**texts.unrepresentable, **others.unrepresentable})


def _array(arrow: pa.DataType, valid: Numbers, *buffers: Numbers) -> pa.Array:
    validity = None if valid.min(initial=1) else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(valid), [validity, *map(pa.py_buffer, buffers)])


def _scratch(cells: Cells) -> tuple[Numbers, Numbers]:
    """For which values are not NULL, and for which are odd."""
    return np.empty(len(cells), np.uint8), np.empty(len(cells), np.int32)


def _integers(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _scratch(cells)
    out = np.empty(len(cells), np.int64)
    is_signed = of.text_loader is load_signed
    bits = of.arrow.bit_width if is_signed else 32
    least = np.uint64(2 ** (bits - 1) if is_signed else 0)
    most = np.uint64(2 ** (bits - 1) - 1 if is_signed else 2**bits - 1)
    odds = number_kernels.integers(*cells._arguments(), bits // 8, least, most, out, valid, odd)
    numbers = out.astype(f"i{of.arrow.bit_width // 8}", copy=False)
    return _array(of.arrow, valid, numbers), odd[:odds]


def _booleans(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _scratch(cells)
    out = np.empty(len(cells), np.uint8)
    odds = number_kernels.booleans(*cells._arguments(), out, valid, odd)
    return _array(of.arrow, valid, np.packbits(out, bitorder="little")), odd[:odds]


def _floats(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _scratch(cells)
    wide = of.arrow.bit_width // 8
    out = np.empty(len(cells), f"f{wide}")
    one = np.empty(1, np.float64)
    odds = float_kernels.floats(
        *cells._arguments(), wide, out, out.view(f"u{wide}"), one, one.view(np.uint64), valid, odd
    )
    return _array(of.arrow, valid, out), odd[:odds]


def _decimals(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _scratch(cells)
    out = np.empty(2 * len(cells), np.uint64)
    precision, scale = of.arrow.precision, of.arrow.scale
    odds = number_kernels.decimals(*cells._arguments(), precision, scale, out, valid, odd)
    return _array(of.arrow, valid, out), odd[:odds]


def _dates(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _scratch(cells)
    out = np.empty(len(cells), np.int32)
    odds = datetime_kernels.dates(*cells._arguments(), out, valid, odd)
    return _array(of.arrow, valid, out), odd[:odds]


def _timestamps(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    valid, odd = _scratch(cells)
    out = np.empty(len(cells), np.int64)
    with_zone = of.text_loader is load_timestamptz
    odds = datetime_kernels.timestamps(*cells._arguments(), with_zone, out, valid, odd)
    return _array(of.arrow, valid, out), odd[:odds]


def _places(cells: Cells, kernel: Callable[..., int], *arguments: int) -> tuple[Numbers, Numbers, Numbers]:
    valid, odd = _scratch(cells)
    offsets = np.empty(len(cells) + 1, np.int32)
    odds = kernel(*cells._arguments(), *arguments, offsets, valid, odd)
    if odds < 0:
        raise OverflowError("2 GiB or more of values in one column of a batch; make the batch smaller")
    return offsets, valid, odd[:odds]


def _texts(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    form = text_kernels.NO_FORM
    if of.fast_binary is fast_binary_string:
        form = text_kernels.AS_TEXT
    elif of.fast_binary is fast_binary_versioned:
        form = text_kernels.VERSIONED
    elif of.binary_text is uuid_text:
        form = text_kernels.UUID
    offsets, valid, odd = _places(cells, text_kernels.text_places, form)
    out = np.empty(int(offsets[-1]) + PADDING, np.uint8)
    if text_kernels.texts(*cells._arguments(), form, offsets, out) < 0:
        raise UnsureError
    return _array(of.arrow, valid, offsets, out[: offsets[-1]]), odd


def _bytes(of: ColumnType, cells: Cells) -> tuple[pa.Array, Numbers]:
    offsets, valid, odd = _places(cells, text_kernels.byte_places)
    out = np.empty(int(offsets[-1]) + PADDING, np.uint8)
    if text_kernels.bytes_of(*cells._arguments(), offsets, out) < 0:
        raise UnsureError
    return _array(of.arrow, valid, offsets, out[: offsets[-1]]), odd


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
    load_bytea: _bytes,
}

"""Kernels read only within the memory of their arguments.

The test puts unreadable pages before and after it. Reading these kills the process, so the kernels run in a child.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context

import numpy as np
import pytest

from pgoutput_etl import jit
from pgoutput_etl.changes.tuple_columns import RawTuples
from pgoutput_etl.jit import PADDING, copy_bytes
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import Insert, TupleData
from pgoutput_etl.scan.fast import messages
from pgoutput_etl.scan.fast.messages import Bytes, MessageFields
from pgoutput_etl.types import ValueTextError
from pgoutput_etl.types.kernels.dispatch import UnsureError
from tests.support import encoder
from tests.support.cells import EDGES, TYPES, tuple_of
from tests.support.typed_tuples import typed_columns

pytestmark = [
    pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs mprotect"),
]
SIZES = (*range(36), 62, 63, 64, 65, 127, 128, 129)


class Guarded:
    """A page of memory between two unreadable ones."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
        self.pages = np.frombuffer(self.memory, np.uint8)
        address = self.pages.ctypes.data
        for page in (0, 2):
            at = ctypes.c_void_p(address + page * mmap.PAGESIZE)
            assert ctypes.CDLL(None).mprotect(at, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0

    def first(self, content: bytes) -> Bytes:
        return self._at(mmap.PAGESIZE, content)

    def last(self, content: bytes) -> Bytes:
        return self._at(2 * mmap.PAGESIZE - len(content), content)

    def _at(self, begin: int, content: bytes) -> Bytes:
        part = self.pages[begin : begin + len(content)]
        part[:] = np.frombuffer(content, np.uint8)
        part.flags.writeable = False  # like the content of a file
        return part


def find_messages() -> None:
    guarded, fields = Guarded(), MessageFields()
    for size in SIZES:
        for value in (b"a" * size, "é".encode() * (size // 2), b"a" * size + b"\xff"):
            message = encoder.encode(Insert(None, 16384, TupleData(b"tnut", (value, None, None, value))))
            data = guarded.last(encoder.length_prefixed([message, message]))
            messages.find(data, Framing.LENGTH_PREFIXED, 0, False, messages.MOST_MESSAGES, fields)
            for cut in range(1, 7):  # its length field is larger than the rest of the data
                messages.find(data[cut:], Framing.RECVLOGICAL, 4 - min(cut, 4), False, 2, fields)


def type_values() -> None:
    guarded = Guarded()
    for name, column_type in TYPES.items():
        values = [text.encode() for text in EDGES.get(name, ())] + [b"1" * size for size in SIZES]
        for kind in (b"t", b"b"):
            for value in values:
                content = tuple_of((kind, value)).to_bytes()
                for data in (guarded.first(content), guarded.last(content)):
                    raw = RawTuples(data, np.zeros(1, np.int64), np.array([len(content)], np.int64))
                    with suppress(UnsureError, ValueTextError):
                        typed_columns(raw, [column_type])


def copy_runs() -> None:
    guarded = Guarded()
    for size in SIZES:
        data, out = guarded.last(b"a" * size), np.zeros(size + PADDING, np.uint8)
        copy_bytes(data, np.uint64(0), np.uint64(size), out, np.uint64(0))


def run_kernels() -> None:
    find_messages()
    type_values()
    copy_runs()


def read_out_of_bounds() -> None:
    ctypes.string_at(Guarded().last(b"a").ctypes.data, 2)


def exit_code(work: Callable[[], None]) -> int | None:
    process = get_context("spawn").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def test_kernels_never_read_out_of_bounds() -> None:
    assert exit_code(read_out_of_bounds) != 0  # the guard works
    assert exit_code(run_kernels) == 0

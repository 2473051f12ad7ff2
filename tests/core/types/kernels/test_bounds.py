"""Kernels read nothing outside the memory that they are given: before and behind it are pages that can't be read.

A read of these ends the process; so it is one of its own.
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
from pgoutput_etl.jit import PADDING, copied
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
    """Memory of a page, between two that can't be read."""

    def __init__(self) -> None:
        self.held = mmap.mmap(-1, 3 * mmap.PAGESIZE)
        self.pages = np.frombuffer(self.held, np.uint8)
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
        part.flags.writeable = False  # as what is read from files is
        return part


def find_messages() -> None:
    guarded, found = Guarded(), MessageFields()
    for size in SIZES:
        for value in (b"a" * size, "é".encode() * (size // 2), b"a" * size + b"\xff"):
            message = encoder.encode(Insert(None, 16384, TupleData(b"tnut", (value, None, None, value))))
            data = guarded.last(encoder.length_prefixed([message, message]))
            messages.find(data, Framing.LENGTH_PREFIXED, 0, False, messages.MOST_MESSAGES, found)
            for cut in range(1, 7):  # its length says more than there is
                messages.find(data[cut:], Framing.RECVLOGICAL, 4 - min(cut, 4), False, 2, found)


def type_values() -> None:
    guarded = Guarded()
    for name, of in TYPES.items():
        values = [text.encode() for text in EDGES.get(name, ())] + [b"1" * size for size in SIZES]
        for kind in (b"t", b"b"):
            for value in values:
                content = tuple_of((kind, value)).to_bytes()
                for data in (guarded.first(content), guarded.last(content)):
                    raw = RawTuples(data, np.zeros(1, np.int64), np.array([len(content)], np.int64))
                    with suppress(UnsureError, ValueTextError):
                        typed_columns(raw, [of])


def copy_runs() -> None:
    guarded = Guarded()
    for size in SIZES:
        data, out = guarded.last(b"a" * size), np.zeros(size + PADDING, np.uint8)
        copied(data, np.uint64(0), np.uint64(size), out, np.uint64(0))


def all_of_them() -> None:
    find_messages()
    type_values()
    copy_runs()


def read_behind() -> None:
    ctypes.string_at(Guarded().last(b"a").ctypes.data, 2)


def exit_code(work: Callable[[], None]) -> int | None:
    process = get_context("spawn").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def test_nothing_is_read_outside_of_what_is_there() -> None:
    assert exit_code(read_behind) != 0  # or nothing would be seen here
    assert exit_code(all_of_them) == 0

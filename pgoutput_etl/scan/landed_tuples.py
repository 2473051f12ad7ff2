"""Tuples that blocks leave in the landed file: a worker reads them there instead of receiving copies from Spark.

This works for uncompressed files on a file system that workers see as their own. The head of a block has the location
of each change. Its tag, relation, and kinds of tuples are compared with the bytes found there, so a file that was
overwritten meanwhile causes an error. A receiver may rename a file at any time; its inode identifies it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pgoutput_etl import jit, plain_file
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Framing, frame_at
from pgoutput_etl.protocol.messages import Delete, Insert, Update
from pgoutput_etl.scan.fast.places import read_tuples
from pgoutput_etl.scan.message_row import one_letter

Numbers = NDArray[np.int64]

# The columns of a message row that locate its tuples
LOCATED_BY = ("file", "offset", "end", "tag", "xid", "relation", "old_kind")

_WINDOW_BYTES = 1 << 22  # bytes to read at a time


class RereadError(ArchiveError):
    """A landed file has changed since it was scanned."""

    code = ErrorCode.CHANGED_FILE


@dataclass(frozen=True, slots=True)
class TupleFile:
    """A landed file that contains the tuples of its changes. path: on the local file system."""

    path: str
    framing: str
    inode: int

    @classmethod
    def at(cls, path: str, framing: Framing) -> TupleFile:
        return cls(path, framing.value, Path(path).lstat().st_ino)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A file descriptor. Raises RereadError."""
        with ExitStack() as stack:
            try:
                descriptor = stack.enter_context(plain_file.opened(self._current_path()))
            except OSError as error:
                raise self.error(0, f"it can't be read: {error.strerror}") from None
            except plain_file.PlainFileError as error:
                raise self.error(0, str(error)) from None
            if os.fstat(descriptor).st_ino != self.inode:
                raise self.error(0, "another file")
            yield descriptor

    def _current_path(self) -> str:
        """The path or, if the file was renamed, its new path in the same folder."""
        path = Path(self.path)
        try:
            if path.lstat().st_ino == self.inode:
                return self.path
        except FileNotFoundError:
            pass
        with os.scandir(path.parent) as entries:
            return next((entry.path for entry in entries if entry.inode() == self.inode), self.path)

    def error(self, offset: int, found: str) -> RereadError:
        return RereadError(
            f"{self.path}: offset {offset}: expected the message that was scanned there, found: {found}. The file has "
            "changed since; nothing is lost if you put it back as it was and run again"
        )


def landed_tuples(rows: pa.RecordBatch, files: Mapping[int, TupleFile]) -> tuple[pa.Array, pa.Array]:
    """The old and new tuples of changes, as pa.binary(); NULL for those in other files.

    rows: rows of changes, with the columns LOCATED_BY. Raises RereadError.
    """
    numbers = rows.column("file").to_numpy()
    begins = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist()]
    tuples: list[tuple[pa.Array, pa.Array]] = []
    for begin, end in zip(begins, [*begins[1:], len(numbers)], strict=True):
        part, file = rows.slice(begin, end - begin), files.get(int(numbers[begin]))
        tuples += [(pa.nulls(end - begin, pa.binary()),) * 2] if file is None else _tuples_of(part, file)
    return pa.concat_arrays([old for old, _ in tuples]), pa.concat_arrays([new for _, new in tuples])


def _tuples_of(rows: pa.RecordBatch, file: TupleFile) -> Iterator[tuple[pa.Array, pa.Array]]:
    """rows: rows of this file, in the order of their messages."""
    offsets, ends = rows.column("offset").to_numpy(), rows.column("end").to_numpy()
    with file.opened() as descriptor:
        begin = 0
        while begin < rows.num_rows:
            end = max(int(np.searchsorted(ends, offsets[begin] + _WINDOW_BYTES, "right")), begin + 1)
            at, size = int(offsets[begin]), int(ends[end - 1] - offsets[begin])
            data = os.pread(descriptor, size, at)
            if len(data) < size:
                raise file.error(at + len(data), "the end of the file")
            yield _tuples_in(data, at, rows.slice(begin, end - begin), file)
            begin = end


def _tuples_in(data: bytes, at: int, rows: pa.RecordBatch, file: TupleFile) -> tuple[pa.Array, pa.Array]:
    """The tuples of changes in `data`, which is at offset `at` in the file."""
    truncates = pc.equal(rows.column("tag"), "T")
    if jit.AVAILABLE and not pc.any(truncates).as_py():
        expected = np.empty((rows.num_rows, 4), np.int64)
        for i, name in enumerate(("tag", "relation", "old_kind", "xid")):
            column = rows.column(name)
            expected[:, i] = one_letter(column) if pa.types.is_string(column.type) else column.fill_null(-1).to_numpy()
        offsets = rows.column("offset").to_numpy() - at
        tuples = read_tuples(np.frombuffer(data, np.uint8), Framing(file.framing), offsets, expected)
        if tuples is not None:
            return tuples
    return _read_one_by_one(data, at, rows, file)


def _read_one_by_one(data: bytes, at: int, rows: pa.RecordBatch, file: TupleFile) -> tuple[pa.Array, pa.Array]:
    pairs = [(None, None) if row["tag"] == "T" else _read_one(data, at, row, file) for row in rows.to_pylist()]
    return pa.array([old for old, _ in pairs], pa.binary()), pa.array([new for _, new in pairs], pa.binary())


def _read_one(data: bytes, at: int, row: Mapping[str, Any], file: TupleFile) -> tuple[bytes | None, bytes | None]:
    in_stream = row["xid"] is not None
    try:
        frame = frame_at(data, Framing(file.framing), row["offset"] - at, in_stream)
        message = decode(data[frame.start : frame.end], in_stream)
    except ArchiveError:
        raise file.error(row["offset"], "no message") from None
    if not isinstance(message, Insert | Update | Delete):
        raise file.error(row["offset"], type(message).__name__)
    old = None if isinstance(message, Insert) else message.old
    new = None if isinstance(message, Delete) else message.new
    old_kind = None if isinstance(message, Insert) or message.old_kind is None else message.old_kind.value
    found = (chr(data[frame.start]), message.xid, message.relation_oid, old_kind)
    if found != (row["tag"], row["xid"], row["relation"], row["old_kind"]):
        raise file.error(row["offset"], "another change")
    return None if old is None else old.to_bytes(), None if new is None else new.to_bytes()

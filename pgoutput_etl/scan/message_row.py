"""The output schema of a scan: one row per message that matters beyond itself, and one for the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.protocol.catalog_message import PREFIX

HEAD = 0
NO_FRAGMENT = -1

# The years 1 to 9999 in microseconds since 2000-01-01 UTC
STORED_TIMES = range(-63_082_281_600_000_000, 252_455_616_000_000_000)

CHANGE_TAGS = ("I", "U", "D", "T")
LOGICAL_TAG = "M"  # a logical decoding Message
CATALOG_TAG = "catalog"  # one that describes a table
SUMMARY_TAG = "file"
ERROR_TAG = "error"
DAMAGE_TAG = "damage"

MESSAGE_SCHEMA = pa.schema(
    [
        ("file", pa.int64()),  # the file's number in the ledger
        ("ordinal", pa.int64()),  # the message's number within the file
        ("offset", pa.int64()),  # of its frame, in the decompressed file
        ("begin", pa.int64()),  # begin, end: the bytes of its frame, and of preceding frames without a row
        ("end", pa.int64()),
        ("lsn", pa.int64()),  # if the framing has it
        ("tag", pa.string()),  # pgoutput's message type, or CATALOG_TAG, SUMMARY_TAG, ERROR_TAG, DAMAGE_TAG
        ("unit", pa.int32()),  # the fragment's number within the file, or HEAD, or NO_FRAGMENT
        ("stretch", pa.int32()),  # the epoch's number within the file
        ("xid", pa.int64()),  # the (sub)transaction's, inside a stream segment
        ("relation", pa.int64()),  # OID
        ("old_kind", pa.string()),  # K or O
        ("old", pa.binary()),  # TupleData as on the wire
        ("new", pa.binary()),
        ("unchanged", pa.list_(pa.int16())),  # positions of unchanged TOAST in new; NULL if none
        # Control messages, LOGICAL_TAG: the message; SUMMARY_TAG, ERROR_TAG: JSON; DAMAGE_TAG: the bytes
        ("body", pa.binary()),
        ("commit_lsn", pa.int64()),  # from Begin: ordinary transactions that begin in this file
        ("commit_ts", pa.int64()),  # microseconds since 2000-01-01 UTC
        ("top_xid", pa.int64()),
        ("changes", pa.int64()),  # on a Commit: the number of changes in its fragment
        ("origin", pa.string()),  # from Origin: ordinary transactions that begin in this file
        ("origin_lsn", pa.int64()),  # on a Commit: its LSN at the origin; NULL if none, or if too large for a BIGINT
    ]
)


def one_letter(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """The codes of one-letter texts; 0 for NULL and for other texts."""
    codes = np.zeros(len(texts), np.uint8)
    _validity, offsets, content = texts.buffers()
    if content is None or texts.null_count == len(texts):
        return codes
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    is_letter = np.diff(bounds) == 1
    if texts.null_count:
        is_letter &= texts.is_valid().to_numpy(zero_copy_only=False)
    codes[is_letter] = np.frombuffer(content, np.uint8)[bounds[:-1][is_letter]]
    return codes


_PREFIX = PREFIX.encode() + b"\0"

_BEFORE_PREFIX = (10, 14)  # bytes of tag, flags, and LSN; in a stream segment, also of the xid


def with_catalog_tag(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The message rows, with a separate tag for catalog Messages (protocol/catalog_message.py), which are for the
    driver, like Relation messages."""
    tag, body = batch.column("tag"), batch.column("body")
    prefixes = [pc.equal(pc.binary_slice(body, at, at + len(_PREFIX)), _PREFIX) for at in _BEFORE_PREFIX]
    is_catalog = pc.and_(pc.equal(tag, LOGICAL_TAG), pc.fill_null(pc.or_(*prefixes), False))
    place = batch.schema.get_field_index("tag")
    return batch.set_column(place, batch.schema.field(place), pc.if_else(is_catalog, CATALOG_TAG, tag))


_ROW = pa.struct(list(MESSAGE_SCHEMA))


@dataclass(frozen=True, slots=True)
class ScanError:
    """The reason why a file could not be scanned. offset: the end of the content that was read earlier; 0 if there is
    none. heads, unkeyed: as in FileScan. is_hopeless: no receiver wrote the file, and nothing in it will ever be
    readable. is_ignored: according to the configuration, which also says that no table depends on the file."""

    text: str
    offset: int = 0
    heads: tuple[str, ...] = ()
    unkeyed: tuple[int, ...] = ()
    is_hopeless: bool = False
    is_ignored: bool = False

    def note(self, file: int) -> pa.RecordBatch:
        """The file's only row."""
        return batch_of([note(file, ERROR_TAG, json.dumps(asdict(self)).encode())])

    @classmethod
    def from_json(cls, text: bytes) -> ScanError:
        fields: dict[str, Any] = json.loads(text)
        return cls(**{**fields, "heads": tuple(fields["heads"]), "unkeyed": tuple(fields["unkeyed"])})


def batch_of(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Message rows from some of their fields. Like RecordBatch.from_pylist, but takes a fraction of the time."""
    return pa.RecordBatch.from_struct_array(pa.array(rows, _ROW))


def note(file: int, tag: str, body: bytes, begin: int = 0, end: int = 0) -> dict[str, Any]:
    """The fields of a row about a file: its summary or error."""
    return {"file": file, "tag": tag, "body": body, "begin": begin, "end": end, "unit": NO_FRAGMENT}

"""Marks catalog Messages (protocol/catalog_message.py), which are for the driver, like Relation messages."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.protocol.catalog_message import PREFIX
from pgoutput_etl.scan.message_row import CATALOG_TAG, LOGICAL_TAG

_PREFIX = PREFIX.encode() + b"\0"

_BEFORE_PREFIX = (10, 14)  # bytes of tag, flags, and LSN; in a stream segment, also of the xid


def with_catalog_tag(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The message rows, with a separate tag for catalog Messages."""
    tag, body = batch.column("tag"), batch.column("body")
    prefixes = [pc.equal(pc.binary_slice(body, at, at + len(_PREFIX)), _PREFIX) for at in _BEFORE_PREFIX]
    is_catalog = pc.and_(pc.equal(tag, LOGICAL_TAG), pc.fill_null(pc.or_(*prefixes), False))
    place = batch.schema.get_field_index("tag")
    return batch.set_column(place, batch.schema.field(place), pc.if_else(is_catalog, CATALOG_TAG, tag))

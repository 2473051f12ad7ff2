"""Catalog Messages (protocol/catalog_message.py) are for the driver, like Relation messages."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.protocol.catalog_message import PREFIX
from pgoutput_etl.scan.message_row import CATALOG_TAG, LOGICAL_TAG

_PREFIX = PREFIX.encode() + b"\0"

_BEFORE_PREFIX = (10, 14)  # bytes: tag, flags and LSN; inside a stream segment the xid, too


def with_catalog_tag(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Message rows, of which those of catalog Messages have a tag of their own."""
    tag, body = batch.column("tag"), batch.column("body")
    prefixes = [pc.equal(pc.binary_slice(body, at, at + len(_PREFIX)), _PREFIX) for at in _BEFORE_PREFIX]
    is_catalog = pc.and_(pc.equal(tag, LOGICAL_TAG), pc.fill_null(pc.or_(*prefixes), False))
    place = batch.schema.get_field_index("tag")
    return batch.set_column(place, batch.schema.field(place), pc.if_else(is_catalog, CATALOG_TAG, tag))

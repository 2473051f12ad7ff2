"""Updates stored values of a user type that has changed: an enum's label, or a composite's attributes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import TypeForm
from pgoutput_etl.types.composites import with_attributes


def reformed(values: pa.Array, before: TypeForm, after: TypeForm) -> pa.Array:
    """The values as the server prints them now. Raises TableError."""
    if pa.types.is_list(values.type):
        elements = reformed(values.values, before, after)
        validity = values.buffers()[0]
        buffers = [validity, values.buffers()[1]]
        return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset, children=[elements])
    if not pa.types.is_string(values.type):
        raise TableError("the type of a column has changed, and its values are stored in a form that can't follow")
    texts = pc.dictionary_encode(values).dictionary if not len(before.attributes) else pc.unique(values).drop_null()
    renamed = {text: _reformed(text, before, after) for text in texts.to_pylist()}
    return pa.array([None if text is None else renamed[text] for text in values.to_pylist()], values.type)


def _reformed(text: str, before: TypeForm, after: TypeForm) -> str:
    if before.labels:
        now = dict(after.labels)
        return next((now.get(oid, label) for oid, label in before.labels if label == text), text)
    return with_attributes(text, before.attributes, after.attributes)

r"""json, jsonb, jsonpath, and xml as PostgreSQL's text, and "char", which is a single byte.

jsonb and jsonpath are sent as a version byte of 1 followed by the text. xml is sent as it is printed, except that its
declaration names the encoding if client_encoding is not UTF8; the text form never names it.

"char" prints a byte that isn't ASCII as a backslash and three octal digits, and 0 as nothing. Before PostgreSQL 16, it
printed the byte itself, which is invalid UTF-8 and rejected in text form. The binary form is the byte in all versions,
and is read as the newer text.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.column import RefusedError, TypeTable, always
from pgoutput_etl.types.strings import fast_binary_string, string_type, text_type

_VERSION = b"\1"

_XML_ENCODING = r'^<\?xml version="[^"]*" encoding='

_XML_ENCODING_BYTES = re.compile(_XML_ENCODING.encode())


def versioned_text(value: bytes) -> bytes:
    if not value.startswith(_VERSION):
        raise RefusedError("a version byte of 1 followed by text")
    return value[1:]


def fast_binary_versioned(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    texts = fast_binary_string(pc.if_else(pc.starts_with(values, _VERSION), values, None), arrow)
    return pc.utf8_slice_codeunits(texts, 1)  # binary_slice fails for short values


def xml_text(value: bytes) -> bytes:
    if _XML_ENCODING_BYTES.match(value):
        raise RefusedError("xml in UTF-8; the sender's client_encoding must be UTF8")
    return value


def fast_binary_xml(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return fast_binary_string(pc.if_else(pc.match_substring_regex(values, _XML_ENCODING), None, values), arrow)


def char_text(value: bytes) -> bytes:
    if len(value) != 1:
        raise RefusedError("a single byte")
    byte = value[0]
    if byte == 0:
        return b""
    return value if byte < 0x80 else b"\\%03o" % byte


TYPES: TypeTable = {
    18: always(string_type('"char"', char_text)),
    114: always(text_type("json")),
    142: always(string_type("xml", xml_text, fast_binary_xml)),
    3802: always(string_type("jsonb", versioned_text, fast_binary_versioned)),
    4072: always(string_type("jsonpath", versioned_text, fast_binary_versioned)),
}

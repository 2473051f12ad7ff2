"""point, lseg, path, box, polygon, line, and circle, as PostgreSQL's text; all consist of float8s."""

from __future__ import annotations

import struct

from pgoutput_etl.types.binary import ValueReader, unpacked
from pgoutput_etl.types.column import TypeTable, always
from pgoutput_etl.types.shortest_float import shortest_float8
from pgoutput_etl.types.strings import string_type

_POINT = struct.Struct(">2d")

_THREE = struct.Struct(">3d")


def point_text(value: bytes) -> bytes:
    return _points(ValueReader(value, "a point of 16 bytes"), 1)


def lseg_text(value: bytes) -> bytes:
    return b"[%s]" % _points(ValueReader(value, "an lseg of 32 bytes"), 2)


def box_text(value: bytes) -> bytes:
    return _points(ValueReader(value, "a box of 32 bytes"), 2)


def path_text(value: bytes) -> bytes:
    reader = ValueReader(value, "a path as path_send writes it")
    closed = reader.uint8()
    if closed > 1:
        raise reader.refusal()
    points = _counted_points(reader)
    return b"(%s)" % points if closed else b"[%s]" % points


def polygon_text(value: bytes) -> bytes:
    return b"(%s)" % _counted_points(ValueReader(value, "a polygon as poly_send writes it"))


def line_text(value: bytes) -> bytes:
    a, b, c = _three_floats(value, "a line of 24 bytes")
    return f"{{{a},{b},{c}}}".encode("ascii")


def circle_text(value: bytes) -> bytes:
    x, y, radius = _three_floats(value, "a circle of 24 bytes")
    return f"<({x},{y}),{radius}>".encode("ascii")


def _counted_points(reader: ValueReader) -> bytes:
    count = reader.int32()
    if count <= 0:
        raise reader.refusal()
    return _points(reader, count)


def _points(reader: ValueReader, count: int) -> bytes:
    """`count` points, which must be the rest of the value."""
    if reader.left() != count * _POINT.size:
        raise reader.refusal()
    pairs = [reader.numbers(_POINT) for _ in range(count)]
    return ",".join(f"({shortest_float8(x)},{shortest_float8(y)})" for x, y in pairs).encode("ascii")


def _three_floats(value: bytes, expected: str) -> list[str]:
    return [shortest_float8(number) for number in unpacked(_THREE, value, expected)]


TYPES: TypeTable = {
    600: always(string_type("point", point_text)),
    601: always(string_type("lseg", lseg_text)),
    602: always(string_type("path", path_text)),
    603: always(string_type("box", box_text)),
    604: always(string_type("polygon", polygon_text)),
    628: always(string_type("line", line_text)),
    718: always(string_type("circle", circle_text)),
}

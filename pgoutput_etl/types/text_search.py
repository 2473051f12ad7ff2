"""tsvector and tsquery, as PostgreSQL's text.

A tsquery is sent as a tree, each operator before its operands and the right operand before the left, and printed with
the fewest possible parentheses (infix() in tsquery.c).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from pgoutput_etl.types.binary import ValueReader
from pgoutput_etl.types.column import TypeTable, always
from pgoutput_etl.types.strings import string_type

_VALUE, _OPERATOR = 1, 2

_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4

_PRIORITY = {_OR: 1, _AND: 2, _PHRASE: 3, _NOT: 4}

_VALUE_PRIORITY = 5

_WEIGHTS = ((8, b"A"), (4, b"B"), (2, b"C"), (1, b"D"))

_POSITION_BITS = 14

_WEIGHT_LETTERS = (b"", b"C", b"B", b"A")  # weight D, the default, is not printed


def tsvector_text(value: bytes) -> bytes:
    reader = ValueReader(value, "a tsvector as tsvectorsend writes it")
    count = reader.count(1)
    lexemes = [_lexeme(reader) for _ in range(count)]
    reader.end()
    return b" ".join(lexemes)


def _lexeme(reader: ValueReader) -> bytes:
    word = _quote(reader.string())
    positions = [_position(reader.uint16()) for _ in range(reader.uint16())]
    return word + b":" + b",".join(positions) if positions else word


def _position(packed: int) -> bytes:
    return b"%d%s" % (packed & (1 << _POSITION_BITS) - 1, _WEIGHT_LETTERS[packed >> _POSITION_BITS])


def _quote(word: bytes) -> bytes:
    return b"'" + word.replace(b"\\", b"\\\\").replace(b"'", b"''") + b"'"


@dataclass(frozen=True, slots=True)
class _Operator:
    code: int
    distance: int  # between the operands of a phrase


@dataclass(frozen=True, slots=True)
class _Printed:
    parts: deque[bytes]  # added on both sides, without recursion: a query may nest as deeply as it is long
    operator: int  # the outermost operator; 0 for a value


def tsquery_text(value: bytes) -> bytes:
    reader = ValueReader(value, "a tsquery as tsquerysend writes it")
    count = reader.count(1)
    items = [_item(reader) for _ in range(count)]
    reader.end()
    operands: list[_Printed] = []
    for item in reversed(items):
        if isinstance(item, bytes):
            operands.append(_Printed(deque([item]), 0))
        elif len(operands) < (1 if item.code == _NOT else 2):
            raise reader.refusal()
        elif item.code == _NOT:
            operands.append(_negate(operands.pop()))
        else:
            right = operands.pop()
            operands.append(_combine(operands.pop(), item, right))
    if len(operands) != min(count, 1):
        raise reader.refusal()
    return b"".join(operands[0].parts) if operands else b""


def _item(reader: ValueReader) -> bytes | _Operator:
    kind = reader.uint8()
    if kind == _VALUE:
        return _operand(reader)
    code = reader.uint8()
    if kind != _OPERATOR or code not in _PRIORITY:
        raise reader.refusal()
    return _Operator(code, reader.uint16() if code == _PHRASE else 0)


def _operand(reader: ValueReader) -> bytes:
    weights, is_prefix = reader.uint8(), reader.uint8()
    if weights > 0xF or is_prefix > 1:
        raise reader.refusal()
    word = _quote(reader.string())
    if not weights and not is_prefix:
        return word
    letters = b"".join(letter for bit, letter in _WEIGHTS if weights & bit)
    return word + b":" + (b"*" if is_prefix else b"") + letters


def _negate(operand: _Printed) -> _Printed:
    parts = _parts_within(operand, _NOT)
    parts.appendleft(b"!")
    return _Printed(parts, _NOT)


def _combine(left: _Printed, operator: _Operator, right: _Printed) -> _Printed:
    sign = {_AND: b" & ", _OR: b" | "}.get(operator.code)
    if sign is None:
        sign = b" <-> " if operator.distance == 1 else b" <%d> " % operator.distance
    before = _parts_within(left, operator.code)
    after = _parts_within(right, operator.code, is_right_of_phrase=operator.code == _PHRASE)
    if len(before) >= len(after):
        before.append(sign)
        before.extend(after)
        parts = before
    else:
        after.appendleft(sign)
        after.extendleft(reversed(before))
        parts = after
    return _Printed(parts, operator.code)


def _parts_within(operand: _Printed, operator: int, *, is_right_of_phrase: bool = False) -> deque[bytes]:
    """The operand's parts, in parentheses if the query would mean something else without them."""
    priority = _PRIORITY.get(operand.operator, _VALUE_PRIORITY)
    if priority < _PRIORITY[operator] or (is_right_of_phrase and operand.operator == _PHRASE):
        operand.parts.appendleft(b"( ")
        operand.parts.append(b" )")
    return operand.parts


TYPES: TypeTable = {
    3614: always(string_type("tsvector", tsvector_text)),
    3615: always(string_type("tsquery", tsquery_text)),
}

"""No sentence steers: only reasons.py looks into the text of a reason, for ledgers of older versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pgoutput_etl"
_MATCHING = {"startswith", "endswith", "partition", "rpartition", "split", "removeprefix", "removesuffix", "find"}
_PATTERN = {"match", "search", "fullmatch", "findall", "finditer"}
_NAMES = ("reason", "damage")


def _is_reason(node: ast.expr) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name in _NAMES
        case ast.BoolOp(values=values):
            return any(map(_is_reason, values))
        case ast.Call(func=ast.Name(id="str"), args=[value]):
            return _is_reason(value)
        case _:
            return False


def steering(source: str) -> Iterator[int]:
    """The lines on which a reason's text is compared, matched or split."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in _MATCHING and _is_reason(value):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr=name), args=args) if name in _PATTERN and any(map(_is_reason, args)):
                yield node.lineno
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[ast.expr() as text]) if _is_reason(text):
                yield node.lineno
            case ast.Compare(left=ast.Attribute() | ast.Subscript() as left, ops=[ast.Eq() | ast.NotEq()]) if (
                _is_reason(left)
            ):
                yield node.lineno
            case _:
                pass


@pytest.mark.parametrize(
    "line",
    [
        'row["reason"].startswith("transaction")',
        "damage.endswith(TORN)",
        "NOT_UTF8 in reason",
        "re.search(pattern, state.reason or '')",
        "held.reason == WAS_SKIPPED",
        'str(reason).partition(": ")',
    ],
)
def test_a_line_that_looks_into_a_reason_is_found(line: str) -> None:
    assert [*steering(line)] == [1]


def test_no_module_decides_by_the_text_of_a_reason() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "reasons.py"]
    found = [f"{path.relative_to(ROOT)}:{n}" for path in modules for n in steering(path.read_text(encoding="utf-8"))]
    assert found == []

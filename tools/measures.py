"""Prints the measures of the package's structure: `python -m tools.measures`, or with --json.

Code lines are those with a token besides comments and docstrings. The calls from a job's file to Delta's MERGE are
counted by tests/spark/load/test_entry_path.py, because counting them needs a run.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

PACKAGE = Path(__file__).parents[1] / "pgoutput_etl"

_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}

_MODE = re.compile(r"\bMode\.[A-Z]")

# For mypy, a place isn't text, so code can take it apart only in these ways: by its marks, or with methods of its text.
PLACE_TAKEN_APART = re.compile(
    r"""startswith\("`"\)|strip\("`"\)|split\("`\.`"\)|"/displaced/|"""
    r"""str\([\w.]*\b(?:path|place)\)\s*(?:\[|\.(?:split|r?partition|startswith|endswith|removeprefix|removesuffix)\b)"""
)

INTERFACE_ASSERTED = re.compile(r"assert isinstance\(\w*(?:archive|rows)")


@dataclass(frozen=True, slots=True)
class Measures:
    """code_lines: by package, or by module outside of packages. largest: the largest one's share of all code lines."""

    code_lines: dict[str, int]
    modules: int
    largest: float
    naming_a_mode: list[str]
    taking_a_place_apart: list[str]
    asserting_an_interface: list[str]

    @property
    def total(self) -> int:
        return sum(self.code_lines.values())


def code_lines(source: str) -> int:
    docstrings = {line for node in ast.walk(ast.parse(source)) for line in _docstring_lines(node)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for t in tokens if t.type not in _NO_CODE and t.string for n in range(t.start[0], t.end[0] + 1)}
    return len(lines - docstrings)


def _docstring_lines(node: ast.AST) -> Iterator[int]:
    match node:
        case ast.Module(body=[first, *_]) | ast.ClassDef(body=[first, *_]) | ast.FunctionDef(body=[first, *_]):
            match first:
                case ast.Expr(value=ast.Constant(value=str())):
                    yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)
                case _:
                    pass
        case _:
            pass


def measures() -> Measures:
    sources = {path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    by_package: Counter[str] = Counter()
    for path, source in sources.items():
        by_package[path.parts[0]] += code_lines(source)
    return Measures(
        code_lines=dict(by_package.most_common()),
        modules=len(sources),
        largest=max(by_package.values()) / by_package.total(),
        naming_a_mode=[path.as_posix() for path, source in sources.items() if _MODE.search(source)],
        taking_a_place_apart=[path.as_posix() for path, source in sources.items() if PLACE_TAKEN_APART.search(source)],
        asserting_an_interface=[
            path.as_posix() for path, source in sources.items() if INTERFACE_ASSERTED.search(source)
        ],
    )


def main() -> int:
    found = measures()
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps({**asdict(found), "total": found.total}) + "\n")
        return 0
    table = Table("package", "code lines", "part", title=f"{found.total:,} code lines in {found.modules} modules")
    for name, lines in found.code_lines.items():
        table.add_row(name, f"{lines:,}", f"{lines / found.total:.0%}")
    console = Console()
    console.print(table)
    for what, paths in (
        ("name a mode", found.naming_a_mode),
        ("take a place apart", found.taking_a_place_apart),
        ("assert what an interface is", found.asserting_an_interface),
    ):
        console.print(f"{len(paths)} modules {what}: {', '.join(paths) or 'none'}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

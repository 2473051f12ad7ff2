"""Lists every place in the code that creates an error for users, with its text. docs/errors.md explains each.

python -m tools.error_sites

Texts come from the source; `…` replaces values that are inserted at run time. A call to a function of the same module
stands for the texts that it returns, a constant for its value.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
GAP = "…"
# The classes of errors.py that code instantiates. Any other exception is caught and reported as one of these.
CLASSES = (
    *("ConfigError", "ArchiveError", "WireError", "FramingError", "SequenceError", "TableError", "RunError"),
    "TryLaterError",
    "AnotherRunError",
)
# Subclasses, and errors that become one of these.
_KINDS = {
    **dict.fromkeys(
        ("_RowError", "RereadError", "FilesChangedError", "UnreadableFileError", "PlainFileError", "ScanError"),
        "ArchiveError",
    ),
    "ExpansionError": "FramingError",
    "CommitOrderError": "SequenceError",
    **dict.fromkeys(("ServerTableError", "UndecidedError"), "TableError"),
}
# Functions of the configuration's checks, whose mistakes become ConfigErrors, with the index of the text's argument.
_MISTAKES = {"mistake": 0, "expected": 1, "text": 0, "items": 0, "Mistake": 1}
# Words of a location. A text of only these words puts a location before another error's text.
_LOCATION = re.compile(r"\b(offset|message|line|record)\b|[^A-Za-z]+")


@dataclass(frozen=True, slots=True, order=True)
class Site:
    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


@cache  # several tests read it
def sites(root: Path = ROOT) -> tuple[Site, ...]:
    """In the order of files and lines, without those that only add a location to another error's text."""
    paths = sorted(path for folder in ("pgoutput_etl", "jobs") for path in (root / folder).rglob("*.py"))
    all_sites = {site for path in paths for site in _module_sites(path, path.relative_to(root).as_posix())}
    return tuple(sorted(site for site in all_sites if _LOCATION.sub("", site.text)))


def _module_sites(path: Path, name: str) -> Iterator[Site]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = _Module.of(tree)
    for scope, call in _calls(tree, None):
        kind = _kind(call)
        if kind is None:
            continue
        for text in _texts(call, kind, module, scope):
            yield Site(name, call.lineno, kind, text)


def _calls(node: ast.AST, scope: ast.FunctionDef | None) -> Iterator[tuple[ast.FunctionDef | None, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        inner = child if isinstance(child, ast.FunctionDef) else scope
        if isinstance(child, ast.Call):
            yield inner, child
        yield from _calls(child, inner)


def _kind(call: ast.Call) -> str | None:
    match call.func:
        case ast.Name(id=name) if name in CLASSES and call.args:
            return name
        case ast.Name(id=name) if name in _KINDS and call.args:
            return _KINDS[name]
        case ast.Name(id=name) if len(call.args) > _MISTAKES.get(name, len(call.args)):
            return "ConfigError"
        case ast.Attribute(value=ast.Name(id="RowError"), attr="of_kind"):
            return "ArchiveError"
        case _:
            return None


def _texts(call: ast.Call, kind: str, module: _Module, scope: ast.FunctionDef | None) -> list[str]:
    if kind == "WireError":  # offset, message, field, expected, found
        parts = [module.texts(part, scope) for part in call.args[1:5]]
        return [
            f"{message}.{field} at byte {GAP}: expected {expected}, found {actual}"
            for message in parts[0]
            for field in parts[1]
            for expected in parts[2]
            for actual in parts[3]
        ]
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    texts = module.texts(call.args[_MISTAKES.get(name, 0)], scope)
    begins = {"expected": f"{GAP}: expected ", "text": f"{GAP}: expected a string: ", "items": f"{GAP}: expected "}
    return [begins.get(name, "") + text for text in texts]


@dataclass(frozen=True, slots=True)
class _Module:
    """The definitions in a module that error texts can come from."""

    constants: Mapping[str, ast.expr]
    functions: Mapping[str, ast.FunctionDef]

    @classmethod
    def of(cls, tree: ast.Module) -> _Module:
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        return cls(constants, functions)

    def texts(self, node: ast.expr, scope: ast.FunctionDef | None, depth: int = 0) -> list[str]:
        """Every text that the expression may have."""
        if depth > 4:
            return [GAP]
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                return self._joined(values, scope, depth)
            case ast.FormattedValue(value=(ast.Name() | ast.IfExp()) as value):
                return self.texts(value, scope, depth + 1)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([left, right], scope, depth)
            case ast.IfExp(body=body, orelse=orelse):
                return [*self.texts(body, scope, depth + 1), *self.texts(orelse, scope, depth + 1)]
            case ast.Name(id=name):
                return self._named(name, scope, depth)
            case ast.Call(func=ast.Name(id=name)) if name in self.functions:
                return self._returned(self.functions[name], depth)
            case _:
                return [GAP]

    def _joined(self, nodes: list[ast.expr], scope: ast.FunctionDef | None, depth: int) -> list[str]:
        texts = [""]
        for node in nodes:
            texts = [before + text for before in texts for text in self.texts(node, scope, depth + 1)]
        return [re.sub(f"{GAP}+", GAP, text) for text in texts]

    def _named(self, name: str, scope: ast.FunctionDef | None, depth: int) -> list[str]:
        if name in self.constants:
            return self.texts(self.constants[name], None, depth + 1)
        assigned = [
            node.value
            for node in (ast.walk(scope) if scope is not None else ())
            if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
        ]
        texts = [text for value in assigned for text in self.texts(value, scope, depth + 1)]
        return list(dict.fromkeys(texts)) or [GAP]

    def _returned(self, function: ast.FunctionDef, depth: int) -> list[str]:
        returned = [
            node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None
        ]
        texts = [text for value in returned for text in self.texts(value, function, depth + 1)]
        return list(dict.fromkeys(texts)) or [GAP]


if __name__ == "__main__":
    sys.stdout.writelines(f"{site}\n" for site in sites())

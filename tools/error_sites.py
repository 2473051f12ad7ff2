"""Every place in the code that makes an error which reaches a user, with its text: docs/operations.md explains each.

python -m tools.error_sites

A text is taken from the source: what is put in at run time is `…`. Of a text that a function of the same module
returns, or a constant, it is that one's.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GAP = "…"
# Those of errors.py that are made; what else is raised is caught on its way to a user, and told by one of these.
CLASSES = ("ConfigError", "ArchiveError", "WireError", "FramingError", "SequenceError", "TableError", "RunError")
# What configuration's nodes make ConfigErrors with.
_OF_NODES = ("error", "expected")
# Of a text that says where, and then another error's text, nothing else is left.
_PLACE = re.compile(r"\b(offset|message|line|record)\b|[^A-Za-z]+")


@dataclass(frozen=True, slots=True, order=True)
class Site:
    path: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.text}"


def sites(root: Path = ROOT) -> list[Site]:
    """In the order of files and lines. Left out are those that pass on another error's text with a place before it."""
    paths = sorted(path for folder in ("pgoutput_etl", "jobs") for path in (root / folder).rglob("*.py"))
    found = {site for path in paths for site in _of_module(path, path.relative_to(root).as_posix())}
    return sorted(site for site in found if _PLACE.sub("", site.text))


def _of_module(path: Path, name: str) -> Iterator[Site]:
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
        case ast.Name(id="_RowError") if call.args:  # changes.py puts the row's place before it
            return "ArchiveError"
        case ast.Attribute(attr=name) if name in _OF_NODES and len(call.args) == 1 and not call.keywords:
            return "ConfigError"
        case _:
            return None


def _texts(call: ast.Call, kind: str, module: _Module, scope: ast.FunctionDef | None) -> list[str]:
    if kind == "WireError":  # offset, message, field, expected, found
        parts = [module.texts(part, scope) for part in call.args[1:5]]
        return [
            f"{message}.{field} at byte {GAP}: expected {expected}, found {found}"
            for message in parts[0]
            for field in parts[1]
            for expected in parts[2]
            for found in parts[3]
        ]
    texts = module.texts(call.args[0], scope)
    is_expected = isinstance(call.func, ast.Attribute) and call.func.attr == "expected"
    return [f"{GAP}: expected {text}" if is_expected else text for text in texts]


@dataclass(frozen=True, slots=True)
class _Module:
    """Where texts come from that are not where the error is made."""

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
        """All that it may be, one after the other."""
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
        found = [""]
        for node in nodes:
            found = [before + text for before in found for text in self.texts(node, scope, depth + 1)]
        return [re.sub(f"{GAP}+", GAP, text) for text in found]

    def _named(self, name: str, scope: ast.FunctionDef | None, depth: int) -> list[str]:
        if name in self.constants:
            return self.texts(self.constants[name], None, depth + 1)
        assigned = [
            node.value
            for node in (ast.walk(scope) if scope is not None else ())
            if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets)
        ]
        found = [text for value in assigned for text in self.texts(value, scope, depth + 1)]
        return list(dict.fromkeys(found)) or [GAP]

    def _returned(self, function: ast.FunctionDef, depth: int) -> list[str]:
        returned = [
            node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None
        ]
        found = [text for value in returned for text in self.texts(value, function, depth + 1)]
        return list(dict.fromkeys(found)) or [GAP]


if __name__ == "__main__":
    sys.stdout.writelines(f"{site}\n" for site in sites())

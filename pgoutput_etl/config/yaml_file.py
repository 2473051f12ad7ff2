"""Reads a YAML file as values that know their file and the path of their key.

A mistake is a ConfigError that names these and the expected value. It never repeats a value, which may be a secret from
the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import Enum
from pathlib import Path
from typing import TypeVar

import yaml

from pgoutput_etl.errors import ConfigError

# Limits for a configuration, in bytes and in values: it is not trusted to be small.
_MAX_SIZE = 1 << 20

_MAX_VALUES = 100_000


_E = TypeVar("_E", bound=Enum)

_VARIABLE = re.compile(r"(\$?)\$\{([^}]{0,500})(\}?)")


@dataclass(frozen=True, slots=True, repr=False)
class Node:
    """A value and its position. value: None if absent; in strings, environment variables are already replaced."""

    file: str
    overridden: tuple[str, ...]
    environ: Mapping[str, str]
    path: str = ""
    value: object = None
    is_secret: bool = False

    def error(self, why: str) -> ConfigError:
        near = any(self.path.startswith(key) or key.startswith(self.path) for key in self.overridden)
        file = f"{self.file} with --set" if near else self.file
        return ConfigError(": ".join(part for part in (file, self.path, why) if part))

    def expected(self, what: str) -> ConfigError:
        return self.error(f"{'missing: ' if self.value is None else ''}expected {what}")

    def child(self, key: str, value: object) -> Node:
        path = key if not self.path or key.startswith("[") else f".{key}"
        node = replace(self, path=self.path + path, value=value)
        if not isinstance(value, str):
            return node
        is_secret = any(not match[1] for match in _VARIABLE.finditer(value))
        return replace(node, value=_VARIABLE.sub(node.variable, value), is_secret=is_secret)

    def variable(self, match: re.Match[str]) -> str:
        escaped, name, closed = match.groups()
        if escaped:
            return match[0][1:]
        if not closed or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise self.error("expected an environment variable's name in ${…}; $${…} stands for a literal ${…}")
        if name not in self.environ:
            raise self.error(f"the environment variable {name} is not set")
        return self.environ[name]

    def mapping(self) -> dict[str, Node]:
        """The items of a mapping with any keys. A null value counts as absent."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.expected("a mapping with strings as keys")
        return {key: self.child(key, value) for key, value in self.value.items() if value is not None}

    def section(self, *known: str) -> dict[str, Node]:
        """A node for each known key, present or not. No other key is allowed."""
        for key in self.value if isinstance(self.value, dict) else ():
            if key not in known:
                near = max(known, key=lambda name: _likeness(name, str(key)))
                hint = f"; did you mean '{near}'?" if _likeness(near, str(key)) > 0.6 else ""
                raise self.child(str(key), None).error(f"unknown key '{key}'{hint} (known: {', '.join(known)})")
        return {key: self.child(key, None) for key in known} | self.mapping()

    def items(self, expected: str) -> list[Node]:
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.expected(expected)
        return [self.child(f"[{i}]", value) for i, value in enumerate(self.value)]

    def text(self, meaning: str) -> str:
        if isinstance(self.value, str) and self.value:
            return self.value
        quotes = " (in quotes)" if isinstance(self.value, int) else ""
        raise self.expected(f"a string{quotes}: {meaning}")

    def optional_text(self, meaning: str) -> str | None:
        return None if self.value is None else self.text(meaning)

    def boolean(self) -> bool:
        written = str(self.value).lower()  # a value from the environment is text
        if self.value is not None and written not in ("true", "false"):
            raise self.expected("true or false")
        return written == "true"

    def positive(self) -> int | None:
        if self.value is None:
            return None
        if not re.fullmatch(r"[1-9][0-9]{0,8}", str(self.value)):
            raise self.expected("a whole number, 1 or more")
        return int(str(self.value))

    def choice(self, default: _E) -> _E:
        for member in type(default):
            if member.value == self.value:
                return member
        if self.value is not None:
            raise self.expected(f"one of {', '.join(member.value for member in type(default))}")
        return default

    def setting(self) -> str:
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        if isinstance(self.value, str | int):
            return str(self.value)
        raise self.expected("a string, a number, true or false")


def read_node(path: str, overrides: Sequence[str], environ: Mapping[str, str]) -> Node:
    """The file's content with the overrides, KEY=VALUE as for --set. Raises ConfigError."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(content) > _MAX_SIZE:
        raise ConfigError(f"{path}: expected at most {_MAX_SIZE:,} bytes")
    values = _parsed(content, path)
    overridden = []
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError("--set: expected KEY=VALUE")
        values = _overridden(values, key, _parsed(text, f"--set {key}"))
        overridden.append(key)
    return Node(path, tuple(overridden), environ, "", values)


def _likeness(a: str, b: str) -> float:
    """0 to 1; letters out of order count half, so that tragte is nearer to target than to state."""
    return (SequenceMatcher(None, a, b).ratio() + SequenceMatcher(None, sorted(a), sorted(b)).ratio()) / 2


def _parsed(content: bytes | str, file: str) -> object:
    """The parsed YAML. Errors lack the excerpt that PyYAML would add."""
    try:
        node = yaml.compose(content, yaml.SafeLoader)
        return None if node is None else _plain(node, file, iter(range(_MAX_VALUES)))
    except yaml.MarkedYAMLError as error:
        problem = re.sub(r"(alias|anchor|handle) '.*'", r"\1", error.problem or "")  # PyYAML's problem has the value
        raise _at_line(file, error.problem_mark, problem) from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{file}: expected YAML in UTF-8, without deep nesting") from None


def _plain(node: yaml.Node, file: str, left: Iterator[int]) -> object:
    """A plain value. All scalars but null, true, false and whole numbers are strings: 0.60, 12:30 and no stay as
    written.

    left: has an item for each value that is still allowed, because aliases of aliases multiply values.
    """
    if next(left, None) is None:
        raise _at_line(file, node.start_mark, f"expected at most {_MAX_VALUES:,} values, aliases included")
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if kind not in ("null", "bool", "int", "float", "timestamp", "value", "merge", "str", "seq", "map"):
        raise _at_line(file, node.start_mark, "expected no tag")
    if isinstance(node, yaml.MappingNode):
        mapping: dict[object, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _at_line(file, key_node.start_mark, "expected a string as key")
            key = _plain(key_node, file, left)
            if key in mapping:
                raise _at_line(file, key_node.start_mark, f"the key '{key}' is given twice")
            mapping[key] = _plain(value_node, file, left)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, file, left) for item in node.value]
    value = str(node.value)
    if kind == "bool" and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind == "int" and re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", value):
        return int(value)
    return None if kind == "null" else value


def _at_line(file: str, mark: yaml.Mark | None, why: str) -> ConfigError:
    return ConfigError(f"{file}: line {mark.line + 1}: {why}" if mark else f"{file}: {why}")


def _overridden(values: object, key: str, value: object) -> object:
    values = {} if values is None else values
    if not isinstance(values, dict):
        return values  # an error when the settings are read
    section, dot, rest = key.partition(".")
    if not dot:
        return {**values, key: value}
    old = values.get(section)
    if old is not None and not isinstance(old, dict):
        raise ConfigError(f"--set {key}: {section} is not a mapping; set all of it, such as --set '{section}=[…]'")
    return {**values, section: {**(old or {}), rest: value}}

"""Reads a YAML file as plain values, with environment variables in its strings.

A mistake is a ConfigError that names the file and the key's path. It never quotes a value, which may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import yaml

from pgoutput_etl.errors import ConfigError

# Limits for a configuration, in bytes and in number of values: a file is not trusted to be small.
_MAX_SIZE = 1 << 20

_MAX_VALUES = 100_000

_MAX_PATH = 1000  # characters


_VARIABLE = re.compile(r"(\$?)\$\{([^}]{0,500})(\}?)")


class FromEnvironment(str):
    """A text that comes, entirely or in part, from the environment, and may be a secret."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Mistake:
    """path: of the key, such as tables[0].match; "" for the whole file."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, repr=False)
class Document:
    """A file's content as plain values. overridden: keys set by options such as --set. environ: the environment, whose
    variables have already been inserted into strings. lines: line numbers in the file, by the path of a key or item.
    mistakes: about variables, whose values are missing. source_place: the path of the section `source` in the file, if
    the document is for one of several sources."""

    file: str
    values: object
    overridden: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    mistakes: Sequence[Mistake] = ()
    source_place: str = "source"

    def in_file(self, path: str) -> str:
        """A key's path in the file."""
        return self.source_place + path.removeprefix("source") if is_within_key(path, "source") else path

    def place(self, path: str) -> str:
        """The file and line of a key, or the option that sets it."""
        path = self.in_file(path)
        for key in self.overridden:
            if is_within_key(path, key):
                return f"--set {key}"
        line = self.line(path)
        return self.file if line is None else f"{self.file}:{line}"

    def line(self, path: str) -> int | None:
        """The line of a key in the file, or of the mapping that lacks it."""
        path = self.in_file(path)
        while path and path not in self.lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.lines.get(path)

    def value(self, keys: Sequence[str | int]) -> object:
        """The value of these nested keys; None if it is missing."""
        value = self.values
        for key in keys:
            if isinstance(value, dict):
                value = value.get(key)
            else:
                value = value[key] if isinstance(value, list) and isinstance(key, int) else None
        return value

    def error(self, mistake: Mistake) -> ConfigError:
        path = self.in_file(mistake.path)
        near = any(path.startswith(key) or key.startswith(path) for key in self.overridden)
        file = f"{self.file} with --set" if near else self.file
        return ConfigError(": ".join(part for part in (file, path, mistake.why) if part))


@dataclass(slots=True)
class _Variables:
    """Inserts environment variables into strings. A string with a mistake becomes None."""

    environ: Mapping[str, str]
    mistakes: list[Mistake] = field(default_factory=list)

    def expanded(self, value: object, path: str) -> object:
        if isinstance(value, dict):
            return {key: self.expanded(item, key_path(path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.expanded(item, key_path(path, i)) for i, item in enumerate(value)]
        return self._with_variables(value, path) if isinstance(value, str) else value

    def _with_variables(self, text: str, path: str) -> str | None:
        variables = list(_VARIABLE.finditer(text))
        mistake = next(filter(None, (self._mistake(match, path) for match in variables)), None)
        if mistake is not None:
            self.mistakes.append(mistake)
            return None
        value = _VARIABLE.sub(lambda match: match[0][1:] if match[1] else self.environ[match[2]], text)
        is_secret = any(not match[1] for match in variables)
        return FromEnvironment(value) if is_secret else value

    def _mistake(self, match: re.Match[str], path: str) -> Mistake | None:
        escaped, name, closed = match.groups()
        if not escaped and (not closed or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)):
            return Mistake(path, "expected an environment variable's name in ${…}; $${…} stands for a literal ${…}")
        return None if escaped or name in self.environ else Mistake(path, f"the environment variable {name} is not set")


def has_secret(value: object) -> bool:
    """True if any text within the value comes from the environment."""
    match value:
        case dict():
            return any(map(has_secret, value.values()))
        case list():
            return any(map(has_secret, value))
        case _:
            return isinstance(value, FromEnvironment)


def written_path(keys: Iterable[str | int]) -> str:
    written = ""
    for key in keys:
        written = key_path(written, key)
    return written


def is_within_key(path: str, key: str) -> bool:
    """True for the key's own path and any path below it. key: "" for the whole file."""
    return path == key or path.startswith((f"{key}.", f"{key}[")) or not key


def key_path(path: str, key: object) -> str:
    """The path of a mapping's key or a list's item: tables, tables[0], tables[0].match."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def read_document(path: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Document:
    """The file's content, with overrides (KEY=VALUE, as for --set). environ: None for this process's environment.
    Raises ConfigError."""
    document = parsed_document(path, overrides, environ)
    if document.mistakes:
        raise document.error(document.mistakes[0])
    return document


def parsed_document(path: str, overrides: Sequence[str], environ: Mapping[str, str] | None = None) -> Document:
    """Like `read_document`, but lists mistakes about variables."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(content) > _MAX_SIZE:
        raise ConfigError(f"{path}: expected at most {_MAX_SIZE:,} bytes")
    lines: dict[str, int] = {}
    values = _parsed(content, path, lines)
    overridden = []
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError("--set: expected KEY=VALUE")
        values = _overridden(values, key, _parsed(text, f"--set {key}"))
        overridden.append(key)
    environ = os.environ if environ is None else environ
    variables = _Variables(environ)
    return Document(path, variables.expanded(values, ""), tuple(overridden), environ, lines, variables.mistakes)


def _parsed(content: bytes | str, file: str, lines: dict[str, int] | None = None) -> object:
    """The parsed YAML. Errors omit the excerpt that PyYAML would add. lines: receives each value's line, by path."""
    try:
        node = yaml.compose(content, yaml.SafeLoader)
        return None if node is None else _Parser(file, {} if lines is None else lines).plain(node, "")
    except yaml.MarkedYAMLError as error:
        problem = re.sub(r"(alias|anchor|handle) '.*'", r"\1", error.problem or "")  # it contains the value
        raise _at_line(file, error.problem_mark, problem) from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{file}: expected YAML in UTF-8, without deep nesting") from None


@dataclass(slots=True)
class _Parser:
    """lines: by a value's path. left: the number of values that are still allowed, because aliases of aliases multiply
    values."""

    file: str
    lines: dict[str, int]
    left: int = _MAX_VALUES

    def plain(self, node: yaml.Node, path: str | None) -> object:
        """A plain value. All scalars except null, true, false, and integers are strings: 0.60, 12:30, and no stay as
        written."""
        self.left -= 1
        if self.left < 0:
            self._refuse(node, f"expected at most {_MAX_VALUES:,} values, aliases included")
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        if kind not in ("null", "bool", "int", "float", "timestamp", "value", "merge", "str", "seq", "map"):
            self._refuse(node, "expected no tag")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, item, path, i) for i, item in enumerate(node.value)]
        return _scalar(kind, str(node.value))

    def _mapping(self, node: yaml.MappingNode, path: str | None) -> object:
        mapping: dict[object, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, "expected a string as key")
            key = self.plain(key_node, path)
            if key in mapping:
                self._refuse(key_node, f"the key '{key}' is given twice")
            mapping[key] = self._value(key_node, value_node, path, str(key))
        return mapping

    def _value(self, begin: yaml.Node, node: yaml.Node, path: str | None, key: str | int) -> object:
        """The value of a node, whose line is recorded under the key's path. begin: the node that the line is taken
        from. path: of the mapping or list that has the key; None if it is too long to keep."""
        path = None if path is None else key_path(path, key)
        if path is not None and len(path) <= _MAX_PATH and begin.start_mark is not None:
            self.lines[path] = begin.start_mark.line + 1
            return self.plain(node, path)
        return self.plain(node, None)

    def _refuse(self, node: yaml.Node, why: str) -> NoReturn:
        raise _at_line(self.file, node.start_mark, why)


def _scalar(kind: str, value: str) -> object:
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
        return values  # causes an error when the settings are read
    section, dot, rest = key.partition(".")
    if not dot:
        return {**values, key: value}
    old = values.get(section)
    if old is not None and not isinstance(old, dict):
        raise ConfigError(f"--set {key}: {section} is not a mapping; set all of it, such as --set '{section}=[…]'")
    return {**values, section: {**(old or {}), rest: value}}

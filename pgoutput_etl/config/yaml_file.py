"""Reads a YAML file as plain values, with variables of the environment in its strings.

A mistake is a ConfigError that names the file and the key's path. It never repeats a value, which may be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from pgoutput_etl.errors import ConfigError

# Limits for a configuration, in bytes and in values: it is not trusted to be small.
_MAX_SIZE = 1 << 20

_MAX_VALUES = 100_000


_VARIABLE = re.compile(r"(\$?)\$\{([^}]{0,500})(\}?)")


class FromEnvironment(str):
    """A text of which any part comes from the environment, and may be a secret."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, repr=False)
class Document:
    """A file's content as plain values. overridden: keys of options such as --set. environ: the environment, whose
    variables are already put into strings."""

    file: str
    values: object
    overridden: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    def error(self, why: str, path: str) -> ConfigError:
        """path: of the key, such as tables[0].match; "" for the whole file."""
        near = any(path.startswith(key) or key.startswith(path) for key in self.overridden)
        file = f"{self.file} with --set" if near else self.file
        return ConfigError(": ".join(part for part in (file, path, why) if part))

    def with_variables(self) -> Document:
        """Puts environment variables into strings. Raises ConfigError."""
        return replace(self, values=self._expanded(self.values, ""))

    def _expanded(self, value: object, path: str) -> object:
        if isinstance(value, dict):
            return {key: self._expanded(item, key_path(path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self._expanded(item, key_path(path, i)) for i, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        text = _VARIABLE.sub(lambda match: self._variable(match, path), value)
        is_secret = any(not match[1] for match in _VARIABLE.finditer(value))
        return FromEnvironment(text) if is_secret else text

    def _variable(self, match: re.Match[str], path: str) -> str:
        escaped, name, closed = match.groups()
        if escaped:
            return match[0][1:]
        if not closed or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise self.error("expected an environment variable's name in ${…}; $${…} stands for a literal ${…}", path)
        if name not in self.environ:
            raise self.error(f"the environment variable {name} is not set", path)
        return self.environ[name]


def key_path(path: str, key: object) -> str:
    """The path of a mapping's key or a list's item: tables, tables[0], tables[0].match."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def read_document(path: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Document:
    """The file's content with the overrides, KEY=VALUE as for --set. environ: of this process, if None. Raises
    ConfigError."""
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
    environ = os.environ if environ is None else environ
    return Document(path, values, tuple(overridden), environ).with_variables()


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

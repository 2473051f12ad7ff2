"""The YAML file as frozen dataclasses, checked whole before anything is read or written.

A mistake is a ConfigError that names the file, the key's path and what was expected. No value is ever repeated in one:
it may have come from the environment, and be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import yaml

from pgoutput_etl.column_uses import DROP, LEAST_SALT, SALT_VARIABLE, Salt, Use, UseKind
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.framing import Framing
from pgoutput_etl.naming import is_within
from pgoutput_etl.origins import ANY, Origins
from pgoutput_etl.types import check_configured

# A configuration is not trusted to be small, either: bytes, and values.
_MAX_SIZE = 1 << 20
_MAX_VALUES = 100_000

# What `columns` may say of a column where the archive leaves open which one it was (lineage.py).
ADDED, RENAMED_FROM = "added", "renamed_from"
_LITERAL = re.compile(r"(?:[^*?\[]|\[[*?\[]\])*")  # a shell pattern that one name alone fits


class Mode(Enum):
    """What a table's Delta table holds."""

    MIRROR = "mirror"
    SOFT_DELETE = "soft_delete"
    HISTORY = "history"
    APPEND = "append"


class OnError(Enum):
    """What becomes of bytes that can't be read."""

    QUARANTINE = "quarantine"
    FAIL = "fail"


class Gaps(Enum):
    """What becomes of files that are numbered one after the other, and of which one is not there."""

    REFUSE = "refuse"
    ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class Source:
    """One replication slot's archive; landing is a folder or a glob. gaps: what of a number that no file has. origins:
    whose transactions are applied."""

    name: str
    landing: str
    framing: Framing = Framing.AUTO
    gaps: Gaps = Gaps.REFUSE
    origins: Origins = ANY


@dataclass(frozen=True, slots=True)
class Target:
    """Exactly one of the two is given."""

    root: str | None = None
    catalog: str | None = None


@dataclass(frozen=True, slots=True)
class State:
    """Where the ledger is."""

    root: str


@dataclass(frozen=True, slots=True)
class TableRule:
    """What holds for the tables whose "schema.table" the shell pattern `match` fits.

    columns: what is said of them, without salts. uses: of those that don't come as they are, what becomes of them.
    rename: the target's schema.table.
    """

    match: str
    skip: bool = False
    mode: Mode = Mode.MIRROR
    key: tuple[str, ...] | None = None
    columns: Mapping[str, str | Mapping[str, str]] = field(default_factory=dict)
    rename: str | None = None
    uses: Mapping[str, Use] = field(default_factory=dict)

    @property
    def target_name(self) -> tuple[str, str] | None:
        """Schema and table, of one that is renamed."""
        if self.rename is None:
            return None
        schema, _, table = self.rename.partition(".")
        return schema, table

    @property
    def lineage(self) -> dict[str, str | None]:
        """What `columns` says of where a column came from: the name it had, or None for one that was added."""
        said: dict[str, str | None] = {}
        for name, what in self.columns.items():
            if what == ADDED:
                said[name] = None
            elif isinstance(what, Mapping) and RENAMED_FROM in what:
                said[name] = what[RENAMED_FROM]
        return said


@dataclass(frozen=True, slots=True)
class Merge:
    """max_transactions: that a batch's files commit, unless it is one file; None: all that is new in one batch."""

    max_transactions: int | None = None
    parallel_tables: int = 4


@dataclass(frozen=True, slots=True)
class Metrics:
    """Where a run's figures go. json: a file that each run adds a line to, or "stderr"; prometheus: a file that each
    run replaces; opentelemetry: as its library's own environment variables say."""

    json: str | None = None
    prometheus: str | None = None
    opentelemetry: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration; spark's values are what a Spark setting takes: strings.

    secrets: the names of those of them that came from the environment, even in part.
    """

    source: Source
    target: Target
    state: State
    tables: tuple[TableRule, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    merge: Merge = field(default_factory=Merge)
    on_error: OnError = OnError.QUARANTINE
    spark: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    metrics: Metrics = field(default_factory=Metrics)

    def rule_for(self, namespace: str, name: str) -> TableRule:
        """The first rule that matches; a table that none matches is mirrored whole."""
        table = f"{namespace}.{name}"
        return next((rule for rule in self.tables if fnmatchcase(table, rule.match)), TableRule("*"))


def load_config(path: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """The file at path, with overrides ("target.root=…", as given to --set) in place of what it says.

    An override names a key of the file or of a section, and everything after the section's dot is one key:
    spark.spark.sql.shuffle.partitions=8. Its value is YAML. ConfigError for everything that can't be so.
    """
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_SIZE + 1)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    if len(content) > _MAX_SIZE:
        raise ConfigError(f"{path}: expected {_MAX_SIZE:,} bytes at most")
    values = _parsed(content, path)
    overridden = []
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError("--set: expected KEY=VALUE")
        values = _overridden(values, key, _parsed(text, f"--set {key}"))
        overridden.append(key)
    return _config(_Node(path, tuple(overridden), os.environ if environ is None else environ, "", values))


def _config(root: _Node) -> Config:
    keys = root.section("source", "target", "state", "tables", "types", "merge", "on_error", "spark", "metrics")
    source, target = _source(keys["source"]), _target(keys["target"])
    return Config(
        source=source,
        target=target,
        state=_state(keys["state"], target),
        tables=_rules(keys["tables"]),
        types={name: _type(name, node) for name, node in keys["types"].mapping().items()},
        merge=_merge(keys["merge"]),
        on_error=keys["on_error"].choice(OnError.QUARANTINE),
        spark={name: node.setting() for name, node in keys["spark"].mapping().items()},
        secrets=frozenset(name for name, node in keys["spark"].mapping().items() if node.is_secret),
        metrics=_metrics(keys["metrics"]),
    )


def _source(node: _Node) -> Source:
    keys = node.section("name", "landing", "framing", "gaps", "origins")
    name = keys["name"].text("a name")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise keys["name"].error("expected only letters, digits, '_', '.' and '-'")
    landing = keys["landing"].text("a folder or a glob")
    framing, gaps = keys["framing"].choice(Framing.AUTO), keys["gaps"].choice(Gaps.REFUSE)
    return Source(name, landing, framing, gaps, _origins(keys["origins"]))


def _origins(node: _Node) -> Origins:
    if node.value is None or node.value == "any":
        return ANY
    if node.value == "none":
        return Origins(accepted=frozenset())
    if not isinstance(node.value, dict):
        raise node.expected("any, none (local transactions alone), {accept: [name]} or {skip: [name]}")
    keys = node.section("accept", "skip")
    given = [name for name in ("accept", "skip") if keys[name].value is not None]
    if len(given) != 1:
        raise node.expected("accept or skip, and not both")
    names = [name.text("an origin's name") for name in keys[given[0]].items("a list of origins' names")]
    if not names or len(set(names)) < len(names):
        raise keys[given[0]].error("expected one name or more, none of them twice")
    return Origins(accepted=frozenset(names)) if given == ["accept"] else Origins(skipped=frozenset(names))


def _target(node: _Node) -> Target:
    keys = node.section("root", "catalog")
    target = Target(keys["root"].optional_text("a folder"), keys["catalog"].optional_text("a catalog's name"))
    if target.root is None and target.catalog is None:
        raise node.error("missing: expected root or catalog")
    if target.root is not None and target.catalog is not None:
        raise node.error("expected root or catalog, not both")
    if target.catalog is not None and not re.fullmatch(r"[\w-]+(\.\w+)?", target.catalog):
        raise keys["catalog"].error(
            "expected a catalog, as main, or with a prefix for the names of schemas, as main.shop"
        )
    if target.root is not None and target.root.startswith("`"):
        raise keys["root"].error("expected a folder: what begins with a backtick is a name in a catalog")
    return target


def _state(node: _Node, target: Target) -> State:
    root = node.section("root")["root"]
    if root.value is None and target.root is not None:
        return State(f"{target.root.rstrip('/')}/_pgoutput_etl")
    state = State(root.text("a folder (no default beside target.catalog)"))
    if target.root is not None and is_within(target.root, state.root):
        raise root.error("expected a folder that target.root is not in: names of tables could be the ledger's")
    return state


def _rules(node: _Node) -> tuple[TableRule, ...]:
    nodes = node.items("a list of rules")
    rules = tuple(map(_rule, nodes))
    targets: dict[str, int] = {}
    for i, rule in enumerate(rules):
        earlier = next((n for n in range(i) if _takes_all(rules[n].match, rule.match)), None)
        if earlier is not None:
            raise nodes[i].error(f"no table comes to it: tables[{earlier}] takes all that it matches, and is before it")
        if rule.rename is not None and targets.setdefault(rule.rename, i) != i:
            raise nodes[i].error(f"expected another `rename` than that of tables[{targets[rule.rename]}]")
    return rules


def _takes_all(pattern: str, other: str) -> bool:
    """Whether a pattern matches all that another one does, as far as is plain to see."""
    is_plain = "?" not in pattern and "[" not in pattern + other
    return pattern == other or (is_plain and fnmatchcase(other, pattern))


def _rule(node: _Node) -> TableRule:
    keys = node.section("match", "skip", "mode", "key", "columns", "rename")
    columns = keys["columns"].mapping()
    rule = TableRule(
        match=keys["match"].text("schema.table as a shell pattern"),
        skip=keys["skip"].boolean(),
        mode=keys["mode"].choice(Mode.MIRROR),
        key=_key(keys["key"]),
        columns={name: _column(column) for name, column in columns.items()},
        rename=keys["rename"].optional_text("schema.table"),
        uses={name: use for name, column in columns.items() if (use := _use(column)) is not None},
    )
    for name in rule.key or ():
        if name in rule.uses and rule.uses[name].kind is not UseKind.HASH:
            raise columns[name].error("it is a column of `key`, which tells rows apart: it can be hashed, and no more")
    if rule.rename is not None:
        _check_rename(keys["rename"], rule)
    return rule


def _check_rename(node: _Node, rule: TableRule) -> None:
    if rule.rename is None or not re.fullmatch(r"[^.]+\.[^.]+", rule.rename):
        raise node.error("expected schema.table, with one dot")
    if not _LITERAL.fullmatch(rule.match):
        raise node.error("expected a `match` without *, ? and [: two tables can't become one")


def _key(node: _Node) -> tuple[str, ...] | None:
    if node.value is None:
        return None
    names = tuple(column.text("a column's name") for column in node.items("a list of column names"))
    if not names or len(set(names)) < len(names):
        raise node.error("expected one column name or more, none of them twice")
    return names


def _column(node: _Node) -> str | Mapping[str, str]:
    """As it is written, without the salt."""
    if isinstance(node.value, dict):
        keys = node.section("hash", "salt", "redact", RENAMED_FROM)
        given = {name: keys[name] for name in ("hash", "redact", RENAMED_FROM) if keys[name].value is not None}
        if not given or {"hash", "redact"} <= given.keys():
            raise node.error(f"expected {_COLUMN_USES}")
        return {name: argument.text("what is done with it") for name, argument in given.items()}
    if node.text(_COLUMN_USES) not in (UseKind.DROP.value, UseKind.REDACT.value, ADDED):
        raise node.error(f"expected {_COLUMN_USES}")
    return str(node.value)


_COLUMN_USES = "drop, redact, {hash: sha256}, {redact: text}, {renamed_from: old name} or added"


def _use(node: _Node) -> Use | None:
    """None for a column whose values come as they are."""
    if not isinstance(node.value, dict):
        return {UseKind.DROP.value: DROP, UseKind.REDACT.value: Use(UseKind.REDACT)}.get(str(node.value))
    keys = node.section("hash", "salt", "redact", RENAMED_FROM)
    if keys["hash"].value is None and keys["salt"].value is not None:
        raise keys["salt"].error("expected beside hash alone")
    if keys["redact"].value is not None:
        return Use(UseKind.REDACT, text=keys["redact"].text("what stands for every value"))
    if keys["hash"].value is None:
        return None
    if keys["hash"].value != "sha256":
        raise keys["hash"].error("expected sha256")
    return Use(UseKind.HASH, _salt(keys["hash"], keys["salt"]))


def _salt(of_hash: _Node, node: _Node) -> Salt:
    """The environment's: a file is read by more people than a secret should be."""
    if node.value is None:
        if SALT_VARIABLE not in node.environ:
            raise of_hash.error(f"expected a salt in the environment variable {SALT_VARIABLE}, which is not set")
        text, where = node.environ[SALT_VARIABLE], of_hash
        what = f"the environment variable {SALT_VARIABLE}: "
    else:
        text, where, what = node.text("${NAME}, a salt from the environment"), node, ""
        if not node.is_secret:
            raise node.error("expected ${NAME}: a salt comes from the environment, and doesn't stand in a file")
    secret = text.encode("utf-8", "surrogateescape")
    if len(secret) < LEAST_SALT:
        raise where.error(f"{what}expected a salt of {LEAST_SALT} bytes or more")
    return Salt(secret)


def _type(name: str, node: _Node) -> str:
    text = node.text("a type's name")
    try:
        check_configured(name, text)
    except ValueError as error:
        raise node.error(str(error)) from None
    return text


def _merge(node: _Node) -> Merge:
    keys = node.section("max_transactions", "parallel_tables")
    return Merge(
        max_transactions=keys["max_transactions"].positive(),
        parallel_tables=keys["parallel_tables"].positive() or Merge().parallel_tables,
    )


def _metrics(node: _Node) -> Metrics:
    keys = node.section("json", "prometheus", "opentelemetry")
    prometheus = keys["prometheus"].optional_text("a file's path, ending in .prom")
    if prometheus is not None and not prometheus.endswith(".prom"):
        raise keys["prometheus"].error("expected a name that ends in .prom: node exporter reads no other")
    return Metrics(keys["json"].optional_text("a file's path, or stderr"), prometheus, keys["opentelemetry"].boolean())


_E = TypeVar("_E", bound=Enum)
_VARIABLE = re.compile(r"(\$?)\$\{([^}]{0,500})(\}?)")


@dataclass(frozen=True, slots=True, repr=False)
class _Node:
    """A value (None: not given) and where it stands; in strings, the environment is already put in."""

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

    def child(self, key: str, value: object) -> _Node:
        path = key if not self.path or key.startswith("[") else f".{key}"
        node = replace(self, path=self.path + path, value=value)
        if not isinstance(value, str):
            return node
        is_secret = any(not found[1] for found in _VARIABLE.finditer(value))
        return replace(node, value=_VARIABLE.sub(node.variable, value), is_secret=is_secret)

    def variable(self, found: re.Match[str]) -> str:
        escaped, name, closed = found.groups()
        if escaped:
            return found[0][1:]
        if not closed or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise self.error("expected an environment variable's name in ${…}; $${…} stands for a literal ${…}")
        if name not in self.environ:
            raise self.error(f"the environment variable {name} is not set")
        return self.environ[name]

    def mapping(self) -> dict[str, _Node]:
        """Any keys; one that is null is as one that isn't given."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict) or not all(isinstance(key, str) for key in self.value):
            raise self.expected("a mapping, its keys strings")
        return {key: self.child(key, value) for key, value in self.value.items() if value is not None}

    def section(self, *known: str) -> dict[str, _Node]:
        """A node for each known key, given or not; no other key is allowed."""
        for key in self.value if isinstance(self.value, dict) else ():
            if key not in known:
                near = max(known, key=lambda name: _likeness(name, str(key)))
                hint = f"; did you mean '{near}'?" if _likeness(near, str(key)) > 0.6 else ""
                raise self.child(str(key), None).error(f"unknown key '{key}'{hint} (known: {', '.join(known)})")
        return {key: self.child(key, None) for key in known} | self.mapping()

    def items(self, expected: str) -> list[_Node]:
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
        written = str(self.value).lower()  # also text, where it comes from the environment
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


def _likeness(a: str, b: str) -> float:
    """0 to 1; letters out of order count half, so that tragte is nearer to target than to state."""
    return (SequenceMatcher(None, a, b).ratio() + SequenceMatcher(None, sorted(a), sorted(b)).ratio()) / 2


def _parsed(content: bytes | str, file: str) -> object:
    """What the YAML says; errors without the excerpt that PyYAML would add."""
    try:
        node = yaml.compose(content, yaml.SafeLoader)
        return None if node is None else _plain(node, file, iter(range(_MAX_VALUES)))
    except yaml.MarkedYAMLError as error:
        problem = re.sub(r"(alias|anchor|handle) '.*'", r"\1", error.problem or "")  # named there: a misread value
        raise _at_line(file, error.problem_mark, problem) from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{file}: expected YAML, in UTF-8 and not nested deep") from None


def _plain(node: yaml.Node, file: str, left: Iterator[int]) -> object:
    """Only null, true, false and whole numbers are no strings: 0.60, 12:30 and no stay as they are written.

    `left`: one for each value that there may yet be, as aliases of aliases make many of few.
    """
    if next(left, None) is None:
        raise _at_line(file, node.start_mark, f"expected {_MAX_VALUES:,} values at most, with what aliases repeat")
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
        return values  # refused for that, once all are in place
    section, dot, rest = key.partition(".")
    if not dot:
        return {**values, key: value}
    old = values.get(section)
    if old is not None and not isinstance(old, dict):
        raise ConfigError(f"--set {key}: {section} is no mapping; set it whole, such as --set '{section}=[…]'")
    return {**values, section: {**(old or {}), rest: value}}

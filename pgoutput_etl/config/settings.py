"""The YAML file as frozen dataclasses, checked whole before anything is read or written.

A mistake is a ConfigError that names the file, the key's path and what was expected. No value is ever repeated in one:
it may have come from the environment, and be a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from pgoutput_etl.config.column_rules import DROP, LEAST_SALT, SALT_VARIABLE, ColumnAction, ColumnRule, Salt
from pgoutput_etl.config.yaml_file import Node, read_node
from pgoutput_etl.identifiers import is_within
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.transactions.origin_filter import ANY, Origins
from pgoutput_etl.types import check_configured

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
    column_rules: Mapping[str, ColumnRule] = field(default_factory=dict)

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
    return _config(read_node(path, overrides, os.environ if environ is None else environ))


def _config(root: Node) -> Config:
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


def _source(node: Node) -> Source:
    keys = node.section("name", "landing", "framing", "gaps", "origins")
    name = keys["name"].text("a name")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise keys["name"].error("expected only letters, digits, '_', '.' and '-'")
    landing = keys["landing"].text("a folder or a glob")
    framing, gaps = keys["framing"].choice(Framing.AUTO), keys["gaps"].choice(Gaps.REFUSE)
    return Source(name, landing, framing, gaps, _origins(keys["origins"]))


def _origins(node: Node) -> Origins:
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


def _target(node: Node) -> Target:
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


def _state(node: Node, target: Target) -> State:
    root = node.section("root")["root"]
    if root.value is None and target.root is not None:
        return State(f"{target.root.rstrip('/')}/_pgoutput_etl")
    state = State(root.text("a folder (no default beside target.catalog)"))
    if target.root is not None and is_within(target.root, state.root):
        raise root.error("expected a folder that target.root is not in: names of tables could be the ledger's")
    return state


def _rules(node: Node) -> tuple[TableRule, ...]:
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


def _rule(node: Node) -> TableRule:
    keys = node.section("match", "skip", "mode", "key", "columns", "rename")
    columns = keys["columns"].mapping()
    rule = TableRule(
        match=keys["match"].text("schema.table as a shell pattern"),
        skip=keys["skip"].boolean(),
        mode=keys["mode"].choice(Mode.MIRROR),
        key=_key(keys["key"]),
        columns={name: _column(column) for name, column in columns.items()},
        rename=keys["rename"].optional_text("schema.table"),
        column_rules={name: use for name, column in columns.items() if (use := _column_rule(column)) is not None},
    )
    for name in rule.key or ():
        if name in rule.column_rules and rule.column_rules[name].action is not ColumnAction.HASH:
            raise columns[name].error("it is a column of `key`, which tells rows apart: it can be hashed, and no more")
    if rule.rename is not None:
        _check_rename(keys["rename"], rule)
    return rule


def _check_rename(node: Node, rule: TableRule) -> None:
    if rule.rename is None or not re.fullmatch(r"[^.]+\.[^.]+", rule.rename):
        raise node.error("expected schema.table, with one dot")
    if not _LITERAL.fullmatch(rule.match):
        raise node.error("expected a `match` without *, ? and [: two tables can't become one")


def _key(node: Node) -> tuple[str, ...] | None:
    if node.value is None:
        return None
    names = tuple(column.text("a column's name") for column in node.items("a list of column names"))
    if not names or len(set(names)) < len(names):
        raise node.error("expected one column name or more, none of them twice")
    return names


def _column(node: Node) -> str | Mapping[str, str]:
    """As it is written, without the salt."""
    if isinstance(node.value, dict):
        keys = node.section("hash", "salt", "redact", RENAMED_FROM)
        given = {name: keys[name] for name in ("hash", "redact", RENAMED_FROM) if keys[name].value is not None}
        if not given or {"hash", "redact"} <= given.keys():
            raise node.error(f"expected {_COLUMN_ACTIONS}")
        return {name: argument.text("what is done with it") for name, argument in given.items()}
    if node.text(_COLUMN_ACTIONS) not in (ColumnAction.DROP.value, ColumnAction.REDACT.value, ADDED):
        raise node.error(f"expected {_COLUMN_ACTIONS}")
    return str(node.value)


_COLUMN_ACTIONS = "drop, redact, {hash: sha256}, {redact: text}, {renamed_from: old name} or added"


def _column_rule(node: Node) -> ColumnRule | None:
    """None for a column whose values come as they are."""
    if not isinstance(node.value, dict):
        return {ColumnAction.DROP.value: DROP, ColumnAction.REDACT.value: ColumnRule(ColumnAction.REDACT)}.get(
            str(node.value)
        )
    keys = node.section("hash", "salt", "redact", RENAMED_FROM)
    if keys["hash"].value is None and keys["salt"].value is not None:
        raise keys["salt"].error("expected beside hash alone")
    if keys["redact"].value is not None:
        return ColumnRule(ColumnAction.REDACT, text=keys["redact"].text("what stands for every value"))
    if keys["hash"].value is None:
        return None
    if keys["hash"].value != "sha256":
        raise keys["hash"].error("expected sha256")
    return ColumnRule(ColumnAction.HASH, _salt(keys["hash"], keys["salt"]))


def _salt(of_hash: Node, node: Node) -> Salt:
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


def _type(name: str, node: Node) -> str:
    text = node.text("a type's name")
    try:
        check_configured(name, text)
    except ValueError as error:
        raise node.error(str(error)) from None
    return text


def _merge(node: Node) -> Merge:
    keys = node.section("max_transactions", "parallel_tables")
    return Merge(
        max_transactions=keys["max_transactions"].positive(),
        parallel_tables=keys["parallel_tables"].positive() or Merge().parallel_tables,
    )


def _metrics(node: Node) -> Metrics:
    keys = node.section("json", "prometheus", "opentelemetry")
    prometheus = keys["prometheus"].optional_text("a file's path, ending in .prom")
    if prometheus is not None and not prometheus.endswith(".prom"):
        raise keys["prometheus"].error("expected a name that ends in .prom: node exporter reads no other")
    return Metrics(keys["json"].optional_text("a file's path, or stderr"), prometheus, keys["opentelemetry"].boolean())

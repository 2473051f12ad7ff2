"""The settings of the YAML file as frozen dataclasses, checked in full before anything is read or written.

A mistake is a ConfigError that names the file, the key's path and the expected value. It never repeats a value, which
may be a secret from the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from fnmatch import translate
from functools import cache
from typing import Any

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule
from pgoutput_etl.config.column_settings import (
    ADDED,
    CONVERTED_FROM,
    RENAMED_FROM,
    TIME_ZONE,
    Setting,
    column_setting,
    settings_of,
)
from pgoutput_etl.config.layout import check_layout, check_tag
from pgoutput_etl.config.yaml_file import Node, read_node
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.file_access import PRIVATE, Access
from pgoutput_etl.identifiers import absolute_place, is_within
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.schema.contract import FOLLOW_ALL, OnChange, SchemaContract
from pgoutput_etl.schema.layout import CHANGE_FEED, Layout, Readers
from pgoutput_etl.time_zones import ZoneConversion
from pgoutput_etl.transactions.origin_filter import ANY, Origins

_SERVER = re.compile(r"postgres://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")

_REMOTE = frozenset({"SPARK_REMOTE", "DATABRICKS_RUNTIME_VERSION"})

_LITERAL = re.compile(r"(?:[^*?\[]|\[[*?\[]\])*")  # a shell pattern that matches a single name


class Mode(Enum):
    """The content of a table's Delta table."""

    MIRROR = "mirror"
    SOFT_DELETE = "soft_delete"
    HISTORY = "history"
    APPEND = "append"


DEFAULT_MODE = Mode.MIRROR


class OnError(Enum):
    """The handling of unreadable bytes."""

    QUARANTINE = "quarantine"
    FAIL = "fail"


class Gaps(Enum):
    """The handling of a missing number among consecutively numbered files."""

    REFUSE = "refuse"
    ACCEPT = "accept"


class Snapshots(Enum):
    """The handling of tables that appear in the archive without their earlier rows."""

    MANUAL = "manual"
    AUTO = "auto"
    ACCEPT = "accept"


class OnMissingRow(Enum):
    """The handling of an UPDATE or DELETE of a row that its table does not have."""

    REPORT = "report"
    HOLD = "hold"
    IGNORE = "ignore"


class OnInvalidText(Enum):
    """The handling of text that is not UTF-8: its table is held, or the value's bytes are kept as unrepresentable."""

    HOLD = "hold"
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Source:
    """One replication slot's archive. landing: a folder or a glob. origins: of the transactions to apply. jdbc: the
    server's URL, for snapshots that `apply` takes by itself. ignore: names of landed files to record without applying
    them."""

    name: str
    landing: str
    framing: Framing = Framing.AUTO
    gaps: Gaps = Gaps.REFUSE
    origins: Origins = ANY
    snapshot: Snapshots = Snapshots.MANUAL
    jdbc: str | None = None
    ignore: tuple[str, ...] = ()

    @property
    def server(self) -> str:
        """The server's JDBC URL, or one in which the reader replaces HOST and DATABASE."""
        return self.jdbc or "jdbc:postgresql://HOST:5432/DATABASE"


@dataclass(frozen=True, slots=True)
class Target:
    """Either root or catalog is set. readers: the programs that can open the tables. views: the prefix of the schemas
    with a view for each table in the catalog, at its version after the last finished batch."""

    root: str | None = None
    catalog: str | None = None
    views: str | None = None
    readers: Readers = Readers.SPARK


@dataclass(frozen=True, slots=True)
class State:
    """root: the ledger's folder. group: of this machine's users; they may read local files with rows' values."""

    root: str
    group: str | None = None

    def access(self) -> Access:
        """Of local files with rows' values. Raises ConfigError if this process may not give files to the group."""
        if self.group is None:
            return PRIVATE
        group = _group_id(self.group)
        assert group is not None  # as load_config has checked
        if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
            raise ConfigError(f"state.group: this job's user is not in the group {self.group}: add it, or name another")
        return Access.of_group(group)


@dataclass(frozen=True, slots=True)
class TableRule:
    """The rule for tables whose "schema.table" matches the shell pattern `match`.

    columns: as configured, without salts. rename: the target's schema.table. into: the schema.table that several
    sources or tables share. tag: values by column that mark this table's rows there, with placeholders. cluster_by,
    partition_by, properties, comment, cdf (the change data feed): see `layout`. column_rules: of the masked columns.
    on_schema_change: the contract with the table's readers. on_missing_row: for changes that contradict its rows.
    on_invalid_text: for values that are not UTF-8.
    """

    match: str
    skip: bool = False
    mode: Mode = DEFAULT_MODE
    key: tuple[str, ...] | None = None
    columns: Mapping[str, Setting] = field(default_factory=dict)
    rename: str | None = None
    into: str | None = None
    tag: Mapping[str, str] = field(default_factory=dict)
    cluster_by: tuple[str, ...] | None = None
    partition_by: tuple[str, ...] | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    cdf: bool | None = None
    on_schema_change: SchemaContract = FOLLOW_ALL
    on_missing_row: OnMissingRow = OnMissingRow.REPORT
    on_invalid_text: OnInvalidText = OnInvalidText.HOLD
    column_rules: Mapping[str, ColumnRule] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        feed = {} if self.cdf is None else {CHANGE_FEED: str(self.cdf).lower()}
        partition_by = self.partition_by or (() if self.cluster_by else tuple(self.tag))
        return Layout(partition_by, self.cluster_by or (), {**self.properties, **feed}, self.comment)

    @property
    def target_name(self) -> tuple[str, str] | None:
        """The configured schema and table of the target."""
        name = self.rename if self.into is None else self.into
        if name is None:
            return None
        schema, _, table = name.partition(".")
        return schema, table

    @property
    def lineage(self) -> dict[str, tuple[str | None, ...]]:
        """The declared former names of columns, in the order of the changes; None for an added column."""
        declared: dict[str, tuple[str | None, ...]] = {}
        for name, configured in self.columns.items():
            for setting in settings_of(configured):
                if setting == ADDED:
                    declared[name] = (*declared.get(name, ()), None)
                elif isinstance(setting, Mapping) and RENAMED_FROM in setting:
                    declared[name] = (*declared.get(name, ()), setting[RENAMED_FROM])
        return declared

    @property
    def conversions(self) -> dict[str, list[ZoneConversion]]:
        """The declared conversions of columns between timestamp and timestamptz."""
        return {
            name: [
                ZoneConversion(setting[CONVERTED_FROM], setting[TIME_ZONE])
                for setting in settings_of(configured)
                if isinstance(setting, Mapping) and CONVERTED_FROM in setting
            ]
            for name, configured in self.columns.items()
        }


@dataclass(frozen=True, slots=True)
class Merge:
    """max_transactions: the limit for the commits in a batch of several files; None: one batch for all new files."""

    max_transactions: int | None = None
    parallel_tables: int = 4


@dataclass(frozen=True, slots=True)
class SourceDatabase:
    """The PostgreSQL database of an archive, which does not name it. namespace: postgres://HOST:PORT, as OpenLineage
    names a server."""

    namespace: str
    database: str


@dataclass(frozen=True, slots=True)
class Metrics:
    """The outputs of a run's metrics. json: a file that each run appends a line to, or "stderr". prometheus: a file
    that each run replaces. opentelemetry, openlineage: configured by the environment variables of their libraries."""

    json: str | None = None
    prometheus: str | None = None
    opentelemetry: bool = False
    openlineage: SourceDatabase | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """spark: Spark's settings, as strings. secrets: the names of those with any part from the environment. options: the
    command line's options that loaded this configuration."""

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
    options: tuple[str, ...] = field(default=(), compare=False)

    def rule_for(self, namespace: str, name: str) -> TableRule:
        """The first rule that matches; without one, the table is mirrored in full."""
        table = f"{namespace}.{name}"
        return next((rule for rule in self.tables if _matches(rule.match, table)), TableRule("*"))


def load_config(path: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Config:
    """Loads the file at `path`; overrides ("target.root=…", as for --set) replace its values. Relative folders become
    absolute, from this process's working folder. Raises ConfigError.

    An override names a key of the file or of a section, and everything after the section's dot is one key:
    spark.spark.sql.shuffle.partitions=8. Its value is YAML.
    """
    environ = os.environ if environ is None else environ
    root = read_node(path, overrides, environ)
    keys = root.section("source", "target", "state", "tables", "types", "merge", "on_error", "spark", "metrics")
    spark = {name: node.setting() for name, node in keys["spark"].mapping().items()}
    place = _as_written if _has_remote_folders(spark, environ) else absolute_place
    source, target = _source(keys["source"], place), _target(keys["target"], place)
    return Config(
        source=source,
        target=target,
        state=_state(keys["state"], target, place),
        tables=_rules(keys["tables"], target),
        types={name: _type(name, node) for name, node in keys["types"].mapping().items()},
        merge=_merge(keys["merge"]),
        on_error=keys["on_error"].choice(OnError.QUARANTINE),
        spark=spark,
        secrets=frozenset(name for name, node in keys["spark"].mapping().items() if node.is_secret),
        metrics=_metrics(keys["metrics"]),
        options=_options(path, overrides),
    )


def _has_remote_folders(spark: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """True if relative paths begin at a folder of another machine: of a Spark Connect server, or of Databricks."""
    return bool(spark.get("spark.remote")) or not environ.keys().isdisjoint(_REMOTE)


def _as_written(place: str) -> str:
    return place


def _options(path: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Without overrides of Spark's settings, which may be secrets: reports repeat these options."""
    repeated = [override for override in overrides if not override.startswith("spark")]
    return ("--config", path, *(word for override in repeated for word in ("--set", override)))


def _source(node: Node, place: Callable[[str], str]) -> Source:
    keys = node.section("name", "landing", "framing", "gaps", "origins", "snapshot", "jdbc", "ignore")
    name = keys["name"].text("a name")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise keys["name"].error("expected only letters, digits, '_', '.' and '-'")
    landing = place(keys["landing"].text("a folder or a glob"))
    framing, gaps = keys["framing"].choice(Framing.AUTO), keys["gaps"].choice(Gaps.REFUSE)
    snapshots, jdbc = keys["snapshot"].choice(Snapshots.MANUAL), keys["jdbc"].optional_text("a server's JDBC URL")
    if jdbc is not None and not re.match(r"jdbc:postgresql:(?!.*[?&](?:ssl)?password=)", jdbc):
        raise keys["jdbc"].error(
            "expected jdbc:postgresql://HOST:PORT/DATABASE, without a password: set the environment variable PGPASSWORD"
        )
    if snapshots is Snapshots.AUTO and jdbc is None:
        raise keys["jdbc"].error("missing: source.snapshot is auto")
    ignore = tuple(name.text("a landed file's name") for name in keys["ignore"].items("a list of landed files' names"))
    return Source(name, landing, framing, gaps, _origins(keys["origins"]), snapshots, jdbc, ignore)


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
        raise node.expected("accept or skip, not both")
    names = frozenset(_names(keys[given[0]], "a list of origins' names", "an origin's name"))
    return Origins(accepted=names) if given == ["accept"] else Origins(skipped=names)


def _names(node: Node, items: str, item: str) -> tuple[str, ...]:
    names = tuple(name.text(item) for name in node.items(items))
    if not names or len(set(names)) < len(names):
        raise node.error("expected one or more names, all different")
    return names


def _target(node: Node, place: Callable[[str], str]) -> Target:
    keys = node.section("root", "catalog", "views", "readers")
    root, catalog = keys["root"].optional_text("a folder"), keys["catalog"].optional_text("a catalog's name")
    root = None if root is None else place(root)
    target = Target(root, catalog, _views(keys["views"], catalog), keys["readers"].choice(Readers.SPARK))
    if target.root is None and target.catalog is None:
        raise node.error("missing: expected root or catalog")
    if target.root is not None and target.catalog is not None:
        raise node.error("expected root or catalog, not both")
    if target.catalog is not None and not re.fullmatch(r"[\w-]+(\.\w+)?", target.catalog):
        raise keys["catalog"].error(
            "expected a catalog, as main, or with a prefix for the names of schemas, as main.shop"
        )
    if target.root is not None and target.root.startswith("`"):
        raise keys["root"].error("expected a folder: only names in a catalog begin with a backtick")
    return target


def _views(node: Node, catalog: str | None) -> str | None:
    if node.value is None:
        return None
    prefix = node.text("a prefix for the names of schemas")
    if catalog is None:
        raise node.error("expected only with target.catalog: folders have a manifest instead")
    if not re.fullmatch(r"[A-Za-z0-9_]+", prefix):
        raise node.error("expected only letters, digits and '_'")
    if prefix.lower() == catalog.partition(".")[2].lower():
        raise node.error("expected another prefix than target.catalog's")
    return prefix


def _state(node: Node, target: Target, place: Callable[[str], str]) -> State:
    keys = node.section("root", "group")
    root, group = keys["root"], keys["group"].optional_text("the name of a group")
    if group is not None and _group_id(group) is None:
        raise keys["group"].error("expected a group of this machine")
    if root.value is None and target.root is not None:
        return State(f"{target.root.rstrip('/')}/_pgoutput_etl", group)
    state = State(place(root.text("a folder (no default with target.catalog)")), group)
    if target.root is not None and is_within(target.root, state.root):
        raise root.error("expected a folder that does not contain target.root: a table could get the ledger's name")
    return state


def _group_id(name: str) -> int | None:
    """None for a group that this machine doesn't have."""
    from grp import getgrnam  # not on Windows

    try:
        return getgrnam(name).gr_gid
    except KeyError:
        return None


def _rules(node: Node, target: Target) -> tuple[TableRule, ...]:
    nodes = node.items("a list of rules")
    rules = tuple(_rule(rule, target) for rule in nodes)
    targets: dict[str, int] = {}
    patterns: dict[str, int] = {}
    wide: dict[str, int] = {}  # those that match more names than the pattern itself
    for i, rule in enumerate(rules):
        covering = (n for pattern, n in wide.items() if _matches_all_of(pattern, rule.match))
        earlier = min((n for n in (patterns.get(rule.match), next(covering, None)) if n is not None), default=None)
        if earlier is not None:
            raise nodes[i].error(f"it never applies: tables[{earlier}] comes first and matches the same tables")
        patterns[rule.match] = i
        if "*" in rule.match and not {"?", "["}.intersection(rule.match):
            wide[rule.match] = i
        if rule.rename is not None and targets.setdefault(rule.rename, i) != i:
            raise nodes[i].error(f"expected another `rename` than that of tables[{targets[rule.rename]}]")
    shared: dict[str, int] = {}
    for i, rule in enumerate(rules):
        if rule.into in targets:
            raise nodes[i].error(f"expected another `into` than the `rename` of tables[{targets[rule.into]}]")
        if rule.into is None:
            continue
        into = rule.into if target.catalog is None else rule.into.lower()
        first = shared.setdefault(into, i)
        if rules[first].tag.keys() != rule.tag.keys():
            raise nodes[i].error(f"expected the columns of the `tag` of tables[{first}], which has the same `into`")
    return rules


def _matches_all_of(pattern: str, other: str) -> bool:
    """True if a pattern with no other wildcard than `*` obviously matches every name that another pattern matches."""
    return "[" not in other and _matches(pattern, other)


def _matches(pattern: str, name: str) -> bool:
    """Like fnmatchcase, which compiles the patterns of many rules again for every name."""
    return _compiled(pattern).match(name) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _rule(node: Node, target: Target) -> TableRule:
    layout = ("cluster_by", "partition_by", "properties", "comment", "cdf")
    changes = ("on_schema_change", "on_missing_row", "on_invalid_text")
    keys = node.section("match", "skip", "mode", "key", "columns", "rename", "into", "tag", *changes, *layout)
    nodes = keys["columns"].mapping()
    columns = {name: column_setting(column) for name, column in nodes.items()}
    rule = TableRule(
        match=keys["match"].text("schema.table as a shell pattern"),
        skip=keys["skip"].boolean(),
        mode=keys["mode"].choice(DEFAULT_MODE),
        key=_columns(keys["key"]),
        columns={name: setting for name, (setting, _) in columns.items()},
        rename=_table_name(keys["rename"]),
        into=_table_name(keys["into"]),
        tag={name: value.text("a value") for name, value in sorted(keys["tag"].mapping().items())},
        cluster_by=_columns(keys["cluster_by"]),
        partition_by=_columns(keys["partition_by"]),
        properties={name: value.setting() for name, value in keys["properties"].mapping().items()},
        comment=keys["comment"].optional_text("a text"),
        cdf=None if keys["cdf"].value is None else keys["cdf"].boolean(),
        on_schema_change=_contract(keys["on_schema_change"]),
        on_missing_row=keys["on_missing_row"].choice(OnMissingRow.REPORT),
        on_invalid_text=keys["on_invalid_text"].choice(OnInvalidText.HOLD),
        column_rules={name: column_rule for name, (_, column_rule) in columns.items() if column_rule is not None},
    )
    check_layout(rule.layout, keys, target.readers)
    check_tag(rule.into, rule.tag, rule.layout, keys)
    if rule.into is not None and rule.rename is not None:
        raise keys["rename"].error("expected either `rename` or `into`")
    if rule.into is not None and target.views is not None:
        raise keys["into"].error("expected no target.views: a view would have the rows of one source alone")
    for name in rule.key or ():
        if name in rule.column_rules and rule.column_rules[name].action is not ColumnAction.HASH:
            raise nodes[name].error("it is a column of `key`, which identifies rows: it can only be hashed")
    if rule.rename is not None and not _LITERAL.fullmatch(rule.match):
        raise keys["rename"].error(
            "expected a `match` without *, ? and [: for several tables in one, use `into` and `tag`"
        )
    return rule


def _table_name(node: Node) -> str | None:
    name = node.optional_text("schema.table")
    if name is not None and not re.fullmatch(r"[^.]+\.[^.]+", name):
        raise node.error("expected schema.table, with one dot")
    return name


def _contract(node: Node) -> SchemaContract:
    parts: dict[str, Any] = {field.name: field.default for field in fields(SchemaContract)}
    keys = node.section(*parts)
    chosen = {part: keys[part].choice(default) for part, default in parts.items()}
    for part, action in chosen.items():
        if action is OnChange.KEEP and part != "drop":
            raise keys[part].error("expected follow, hold or fail: only dropped columns can be kept")
    return SchemaContract(**chosen)


def _columns(node: Node) -> tuple[str, ...] | None:
    return None if node.value is None else _names(node, "a list of column names", "a column's name")


def _type(name: str, node: Node) -> str:
    from pgoutput_etl.types import check_configured  # imports Arrow, which few configurations need

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
    keys = node.section("json", "prometheus", "opentelemetry", "openlineage")
    prometheus = keys["prometheus"].optional_text("a file's path, ending in .prom")
    if prometheus is not None and not prometheus.endswith(".prom"):
        raise keys["prometheus"].error("expected a name that ends in .prom: node exporter reads no other")
    return Metrics(
        keys["json"].optional_text("a file's path, or stderr"),
        prometheus,
        keys["opentelemetry"].boolean(),
        None if keys["openlineage"].value is None else _source_database(keys["openlineage"]),
    )


def _source_database(node: Node) -> SourceDatabase:
    if not isinstance(node.value, dict):
        raise node.expected("{namespace: postgres://HOST:PORT, database: name}")
    keys = node.section("namespace", "database")
    namespace = keys["namespace"].text("postgres://HOST:PORT")
    if not _SERVER.fullmatch(namespace):
        raise keys["namespace"].error("expected postgres://HOST:PORT, without a user, a password, or a database")
    return SourceDatabase(namespace, keys["database"].text("the name of the PostgreSQL database"))

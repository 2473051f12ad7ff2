"""The configuration: the settings in the YAML file, checked completely before anything is read or written.

A mistake is a ConfigError that names the file, the key's path, and the expected value. It never quotes a value, which
may be a secret from the environment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, SkipValidation, ValidationInfo, field_validator, model_validator
from pydantic.dataclasses import dataclass as section
from pydantic.json_schema import SkipJsonSchema

from pgoutput_etl.config.key_checks import (
    DIFFERENT,
    SETTINGS,
    Flag,
    Positive,
    Section,
    Settings,
    about,
    as_mapping,
    below,
    checked,
    expected,
    items,
    known_keys,
    matching,
    mistake,
    mistakes,
    part,
    text,
)
from pgoutput_etl.config.layout import check_readers
from pgoutput_etl.config.rule_merge import RuleBook, Rules
from pgoutput_etl.config.rules import OnDrop, TableRule
from pgoutput_etl.config.sources import chosen_document, source_documents
from pgoutput_etl.config.yaml_file import Document, FromEnvironment, Mistake, read_document
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import ConfigError, coded
from pgoutput_etl.file_access import PRIVATE, Access
from pgoutput_etl.identifiers import is_within
from pgoutput_etl.places import Place, absolute_place
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.schema.layout import Readers
from pgoutput_etl.transactions.origin_filter import ANY, Origins

_REMOTE = frozenset({"SPARK_REMOTE", "DATABRICKS_RUNTIME_VERSION"})


class OnError(Enum):
    """How to handle unreadable bytes."""

    QUARANTINE = "quarantine"
    FAIL = "fail"


class Gaps(Enum):
    """How to handle a missing number among consecutively numbered files."""

    REFUSE = "refuse"
    ACCEPT = "accept"


class Snapshots(Enum):
    """How to handle tables that appear in the archive without their earlier rows."""

    MANUAL = "manual"
    AUTO = "auto"
    ACCEPT = "accept"


def _place(value: str, info: ValidationInfo) -> str:
    """A folder or glob in the file. Relative ones start from this process's working folder, unless another machine
    reads them."""
    return absolute_place(value) if info.context is not None and info.context["absolute"] else value


_WITHOUT_PASSWORD = matching(
    r"(jdbc:)?postgres(ql)?:(?!.*[?&](?:ssl)?password=)(?!//[^/@]*:[^/@]*@)(?s:.*)",
    "expected postgresql://HOST:PORT/DATABASE, without a password: set the environment variable PGPASSWORD",
)

_OriginNames: TypeAlias = Annotated[
    tuple[Annotated[str, text("an origin's name")], ...], items("a list of origins' names"), DIFFERENT
]


@section(frozen=True, config=SETTINGS)
class _ChosenOrigins(Section):
    accept: _OriginNames | None = None
    skip: _OriginNames | None = None

    @model_validator(mode="after")
    def _one(self) -> _ChosenOrigins:
        if (self.accept is None) == (self.skip is None):
            raise mistake("expected accept or skip, not both")
        return self


def _origins(value: object) -> Origins:
    if isinstance(value, Origins):
        return value
    if value == "any":
        return ANY
    if value == "none":
        return Origins(accepted=frozenset())
    if not isinstance(value, Mapping):
        raise expected(value, "any, none (local transactions alone), {accept: [name]} or {skip: [name]}")
    chosen = part(_ChosenOrigins, value)
    if chosen.accept is not None:
        return Origins(accepted=frozenset(chosen.accept))
    return Origins(skipped=frozenset(chosen.skip or ()))


@dataclass(frozen=True, slots=True)
class CatalogKey:
    """Signs catalog Messages (protocol/catalog_message.py). A secret that is never shown."""

    secret: bytes = field(repr=False)


def _catalog_key(value: object) -> CatalogKey | None:
    if value is None or isinstance(value, CatalogKey):
        return value
    if not isinstance(value, FromEnvironment):
        raise mistake("expected ${NAME}: the key comes from the environment, never from a file")
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise mistake("expected 64 hexadecimal digits, as conf/landing/catalog.sql prints them")
    return CatalogKey(bytes.fromhex(value))


_ServerUrl: TypeAlias = Annotated[str, _WITHOUT_PASSWORD, text("a server's URL")] | None


@section(frozen=True, config=SETTINGS)
class Source(Section):
    """One replication slot's archive. landing: a folder or a glob. origins: of the transactions to apply. server: its
    URL, for snapshots that `apply` takes on its own; jdbc: the same, as a JDBC URL. ignore: names of landed files to
    record without applying them."""

    name: Annotated[
        str,
        matching(r"[A-Za-z0-9_.-]+", "expected only letters, digits, '_', '.' and '-'"),
        text("a name"),
        about(
            "the archive of one replication slot; the ledger is kept per source. Letters, digits, `_`, `.`, `-`", "shop"
        ),
    ]
    landing: Annotated[
        str,
        AfterValidator(_place),
        text("a folder or a glob"),
        about("a folder or a glob, on any file system that Spark reads", "s3a://lake/landing/shop/"),
    ]
    framing: Annotated[Framing, about("how files separate messages: [framings](#framings)", "recvlogical")] = (
        Framing.AUTO
    )
    gaps: Annotated[Gaps, about("whether [a missing numbered file](guarantees.md#gaps) stops the run", "accept")] = (
        Gaps.REFUSE
    )
    origins: Annotated[
        SkipValidation[Origins],
        BeforeValidator(_origins, json_schema_input_type=Literal["any", "none"] | _ChosenOrigins),
        about("[whose transactions](ledger.md#origins) are applied", {"skip": ["elsewhere"]}),
    ] = ANY
    snapshot: Annotated[
        Snapshots,
        about(
            "rows from before a table's first change. `manual`: the table is [incomplete](states.md), with exit code "
            "3, until you load them; `auto`: `apply` [loads them](snapshot.md#tables-that-appear-later); `accept`: "
            "there are none, or nobody needs them",
            "accept",
        ),
    ] = Snapshots.MANUAL
    server: Annotated[
        _ServerUrl,
        about(
            "the server, for `snapshot: auto` and commands that reports print; PGUSER, PGPASSWORD … count",
            "postgresql://db:5432/shop",
        ),
    ] = None
    jdbc: Annotated[_ServerUrl, about("the same, as JDBC's URL", "jdbc:postgresql://db:5432/shop")] = None
    catalog_key: Annotated[
        SkipValidation[CatalogKey | None],
        BeforeValidator(_catalog_key, json_schema_input_type=str),
        about(
            "the key that `conf/landing/catalog.sql` has printed: without it, any user of the database can write "
            "[catalog Messages](schema-changes.md#catalog-messages)",
            "${CATALOG_KEY}",
        ),
    ] = None
    ignore: Annotated[
        tuple[Annotated[str, text("a landed file's name")], ...],
        items("a list of landed files' names"),
        about(
            "landed files, by name, [to record without applying them](guarantees.md#hostile-files)",
            ["shop-0000007.bin.gz"],
        ),
    ] = ()

    @model_validator(mode="after")
    def _has_server(self) -> Source:
        if self.snapshot is Snapshots.AUTO and self.server is None and self.jdbc is None:
            raise mistake("missing: source.snapshot is auto", "server")
        return self

    @property
    def server_url(self) -> str:
        """The server's URL, or one in which the reader must replace HOST and DATABASE."""
        return self.server or self.jdbc or "postgresql://HOST:5432/DATABASE"


def _folder(root: str) -> str:
    if Place(root).is_in_catalog:
        raise mistake("expected a folder: only names in a catalog begin with a backtick")
    return root


_CATALOG = matching(
    r"[\w-]+(\.\w+)?", "expected a catalog, as main, or with a prefix for the names of schemas, as main.shop"
)


@section(frozen=True, config=SETTINGS)
class Target(Section):
    """Either root or catalog is set. readers: the programs that can open the tables. views: prefix of the schemas that
    have a view for each table in the catalog, at its version after the last finished batch."""

    root: Annotated[
        Annotated[str, AfterValidator(_folder), AfterValidator(_place), text("a folder")] | None,
        about(
            "a folder, with a Delta table per PostgreSQL table at `<root>/<schema>/<table>`. Either this or `catalog`",
            "./warehouse",
        ),
    ] = None
    catalog: Annotated[
        Annotated[str, _CATALOG, text("a catalog's name")] | None,
        about("tables `<catalog>.<schema>.<table>` [in a catalog](storage.md#catalogs); requires `state.root`", "main"),
    ] = None
    views: Annotated[
        Annotated[str, text("a prefix for the names of schemas")] | None,
        about("prefix of the schemas with [a view per table](ledger.md#views) as of the last finished batch", "bi"),
    ] = None
    readers: Annotated[Readers, about("[the programs that can open the tables](layout.md#readers)", "auto")] = (
        Readers.SPARK
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Target:
        if self.root is None and self.catalog is None:
            raise mistake("missing: expected root or catalog")
        if self.root is not None and self.catalog is not None:
            raise mistake("expected root or catalog, not both")
        if self.views is None:
            return self
        if self.catalog is None:
            raise mistake("expected only with target.catalog: folders have a manifest instead", "views")
        if not re.fullmatch(r"[A-Za-z0-9_]+", self.views):
            raise mistake("expected only letters, digits and '_'", "views")
        if self.views.lower() == self.catalog.partition(".")[2].lower():
            raise mistake("expected another prefix than target.catalog's", "views")
        return self


def _own_group(name: str) -> str:
    if _group_id(name) is None:
        raise mistake("expected a group of this machine")
    return name


def _group_id(name: str) -> int | None:
    """The group's ID; None for a group that this machine doesn't have."""
    from grp import getgrnam  # not on Windows

    try:
        return getgrnam(name).gr_gid
    except KeyError:
        return None


@section(frozen=True, config=SETTINGS)
class State(Section):
    """root: the ledger's folder. group: a group on this machine whose users may read local files with values of
    rows."""

    root: Annotated[
        str,
        AfterValidator(_place),
        text("a folder (no default with target.catalog)"),
        about("the folder of the ledger, outside of the tables' folders", "./state"),
    ]
    group: Annotated[
        Annotated[str, AfterValidator(_own_group), text("the name of a group")] | None,
        about(
            "the group that may read [local files with rows' values](storage.md#permissions-of-local-files)", "users"
        ),
    ] = None

    def access(self) -> Access:
        """Access to local files with values of rows. Raises ConfigError if this process may not give files to the
        group."""
        if self.group is None:
            return PRIVATE
        group = _group_id(self.group)
        assert group is not None  # load_config has checked it
        if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
            raise ConfigError(f"state.group: this job's user is not in the group {self.group}: add it, or name another")
        return Access.of_group(group)


@section(frozen=True, config=SETTINGS)
class Merge(Section):
    """max_transactions: limit on the commits in a batch of several files; None: one batch for all new files."""

    max_transactions: Annotated[
        Positive | None,
        about("most committed transactions per [batch](guarantees.md#a-long-backlog), by whole files", 1000),
    ] = None
    parallel_tables: Annotated[
        Positive,
        about("tables written, verified, or maintained at a time; small tables in object storage: at least 16", 8),
    ] = 4


_SERVER = matching(
    r"postgres://(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}",
    "expected postgres://HOST:PORT, without a user, a password, or a database",
)


@section(frozen=True, config=SETTINGS)
class SourceDatabase(Section):
    """The PostgreSQL database of an archive; the archive doesn't name it. namespace: postgres://HOST:PORT,
    OpenLineage's name for a server."""

    form: ClassVar[str] = "{namespace: postgres://HOST:PORT, database: name}"

    namespace: Annotated[str, _SERVER, text("postgres://HOST:PORT")]
    database: Annotated[str, text("the name of the PostgreSQL database")]


_PROMETHEUS_FILE = matching(r"(?s:.*)\.prom", "expected a name that ends in .prom: node exporter reads no other")


@section(frozen=True, config=SETTINGS)
class Metrics(Section):
    """The outputs for a run's metrics. json: a file to which each run appends a line, or "stderr". prometheus: a file
    that each run replaces. opentelemetry, openlineage: configured by their libraries' environment variables."""

    json: Annotated[
        Annotated[str, text("a file's path, or stderr")] | None,
        about("a file to which each run appends [a line](runbook.md#json-lines), or `stderr`", "./runs.jsonl"),
    ] = None
    prometheus: Annotated[
        Annotated[str, _PROMETHEUS_FILE, text("a file's path, ending in .prom")] | None,
        about("a file that each run replaces, ending in `.prom`, in an existing folder", "./shop.prom"),
    ] = None
    opentelemetry: Annotated[Flag, about("exports metrics through OpenTelemetry", True)] = False
    openlineage: Annotated[
        SourceDatabase | None,
        about(
            "sends [lineage](neighbors.md#openlineage) through OpenLineage; names the archive's server and database",
            {"namespace": "postgres://db.example:5432", "database": "shop"},
        ),
    ] = None


class Occasion(Enum):
    """Events to notify somebody of: a failed run, and the states of tables (targets/condition.py)."""

    FAILED = "failed"
    HELD = "held"
    DIVERGED = "diverged"
    AMBIGUOUS = "ambiguous"
    REWRITTEN = "rewritten"
    INCOMPLETE = "incomplete"


@section(frozen=True, config=SETTINGS)
class Notify(Section):
    url: Annotated[
        str,
        matching(r"https?://[!-~]+", "expected a URL that begins with https:// or http://"),
        text("a URL"),
    ]
    on: Annotated[tuple[Occasion, ...], items("a list of states, or failed"), DIFFERENT] = tuple(Occasion)


def _types(types: Mapping[str, str]) -> Mapping[str, str]:
    from pgoutput_etl.types import check_configured  # imports Arrow, which few configurations need

    for name, written in types.items():
        try:
            check_configured(name, written)
        except ValueError as error:
            raise mistake(str(error), name) from None
    return types


NO_DEFAULTS = TableRule("*")

_DEFAULTS_KEYS = [name for name in TableRule.key_fields() if name != "match"]


def _defaults(value: object, info: ValidationInfo) -> TableRule:
    if isinstance(value, TableRule):
        return value
    return part(TableRule, {**known_keys(as_mapping(value), _DEFAULTS_KEYS), "match": NO_DEFAULTS.match}, info.context)


@section(frozen=True, config=SETTINGS)
class Config(Section):
    """spark: Spark's settings, as strings. secrets: the names of settings with any part from the environment. options:
    the command-line options that this configuration was loaded with."""

    computed: ClassVar[frozenset[str]] = frozenset({"secrets", "options"})

    source: Source
    target: Target
    state: State
    tables: Annotated[tuple[TableRule, ...], items("a list of rules")] = ()
    rules: Annotated[
        Rules, about("the rules that apply to a table: the `first` that matches, or [all of them](#rules)", "merge")
    ] = Rules.FIRST
    defaults: Annotated[
        SkipValidation[TableRule],
        BeforeValidator(_defaults),
        about("keys of a rule, without `match`, [for all tables](#rules)", {"on_missing_row": "hold"}),
    ] = field(default_factory=lambda: NO_DEFAULTS)
    include: Annotated[
        Annotated[
            tuple[Annotated[str, text("schema.table as a shell pattern")], ...], items("a list of patterns"), DIFFERENT
        ]
        | None,
        about(
            "the only tables to apply, as shell patterns; others are [skipped](#precedence-and-changes)",
            ["public.orders", "billing.*"],
        ),
    ] = None
    types: Annotated[
        Mapping[str, Annotated[str, text("a type's name")]],
        BeforeValidator(as_mapping),
        AfterValidator(_types),
        about(
            "the [type](types.md#configure-types) that a named type's values get",
            {"public.posint": "int4", "jsonb": "variant"},
        ),
    ] = field(default_factory=dict)
    merge: Merge = field(default_factory=Merge)
    on_error: Annotated[
        OnError,
        about(
            "unreadable bytes: quarantine them with everything that may depend on them, or stop before writing", "fail"
        ),
    ] = OnError.QUARANTINE
    spark: Annotated[
        Settings,
        about(
            "session settings; `spark.remote` names a [Spark Connect](deploy.md#spark-connect) server. Settings from "
            "the environment are kept out of Spark's UI and logs",
            {"spark.sql.shuffle.partitions": 64},
        ),
    ] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=Metrics)
    notify: Annotated[
        Notify | None,
        about(
            "a webhook, and the [occasions](runbook.md#notifications) on which it gets a message (default: all)",
            {"url": "${SHOP_WEBHOOK}", "on": ["failed", "held", "diverged"]},
        ),
    ] = None
    secrets: SkipJsonSchema[frozenset[str]] = frozenset()
    options: SkipJsonSchema[tuple[str, ...]] = field(default=(), compare=False)

    @classmethod
    def computed_from(cls, given: dict[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        spark = given.get("spark")
        settings = spark.items() if isinstance(spark, Mapping) else ()
        secrets = frozenset(name for name, value in settings if isinstance(value, FromEnvironment))
        return {**given, "secrets": secrets, "options": context["options"]}

    @field_validator("state", mode="before")
    @classmethod
    def _beside_tables(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, Mapping | None):
            return given
        target, given = info.data.get("target"), given or {}
        if target is None:  # it has mistakes, so a missing default isn't reported as well
            return {"root": ".", **given}
        if target.root is None:
            return given
        return given if given.get("root") is not None else {**given, "root": f"{target.root.rstrip('/')}/_pgoutput_etl"}

    @model_validator(mode="after")
    def _fit_together(self, info: ValidationInfo) -> Config:
        if info.context is None:  # made by code from a configuration that has been checked
            return self
        root = self.target.root
        if root is not None and is_within(root, self.state.root):
            why = "expected a folder that does not contain target.root: a table could get the ledger's name"
            raise mistake(why, "state", "root")
        for placed in self.rule_book.placed:
            with below(*placed.path):
                self._check_rule(placed.rule)
        self.rule_book.check(ignores_case=self.target.catalog is not None)
        return self

    def _check_rule(self, rule: TableRule) -> None:
        """Raises a `mistake` if the rule contradicts other sections."""
        check_readers(rule.layout, self.target.readers)
        if rule.on_drop is OnDrop.ARCHIVE and self.source.catalog_key is None:
            raise mistake(
                "expected source.catalog_key: without it, anybody who may connect to the database can forge the "
                "Message of a DROP TABLE",
                "on_drop",
            )
        if rule.into is not None and self.target.views is not None:
            raise mistake("expected no target.views: a view would have the rows of one source alone", "into")

    @cached_property
    def rule_book(self) -> RuleBook:
        return RuleBook(self.defaults, self.tables, self.rules, self.include)

    @cached_property
    def _rules_by_name(self) -> dict[str, TableRule]:
        return {}

    def rule_for(self, namespace: str, name: str) -> TableRule:
        """The rule for a table; without any, the table is mirrored completely."""
        table = f"{namespace}.{name}"
        if table not in self._rules_by_name:
            self._rules_by_name[table] = self.rule_book.rule(table)
        return self._rules_by_name[table]


@coded(ErrorCode.CONFIG_FILE, ConfigError)
def load_config(
    path: str, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None, source: str | None = None
) -> Config:
    """Loads the file at `path`; overrides ("target.root=…", as for --set) replace its values. Relative folders become
    absolute, based on this process's working folder. source: the name of one source, if the file has several. Raises
    ConfigError.

    An override names a key of the file or of a section; everything after the section's dot is one key:
    spark.spark.sql.shuffle.partitions=8. Its value is YAML.
    """
    document = read_document(path, overrides, environ)
    return _config(chosen_document(document, source), overrides, source)


@coded(ErrorCode.CONFIG_FILE, ConfigError)
def load_configs(path: str, overrides: Sequence[str] = ()) -> tuple[Config, ...]:
    """Like `load_config`, for all sources of the file."""
    documents = source_documents(read_document(path, overrides))
    return tuple(
        _config(document, overrides, str(document.value(("source", "name"))) if len(documents) > 1 else None)
        for document in documents
    )


def _config(document: Document, overrides: Sequence[str], source: str | None) -> Config:
    config: Config = checked(Config, document, _context(document, overrides, source))
    return config


def config_mistakes(document: Document) -> list[Mistake]:
    """All mistakes in a source's file that can be found at once."""
    return mistakes(Config, document, _context(document, (), None))


def _context(document: Document, overrides: Sequence[str], source: str | None) -> dict[str, Any]:
    written = document.values.get("spark") if isinstance(document.values, Mapping) else None
    spark = written if isinstance(written, Mapping) else {}
    absolute = not spark.get("spark.remote") and document.environ.keys().isdisjoint(_REMOTE)
    options = _options(document.file, overrides, source)
    return {"absolute": absolute, "environ": document.environ, "options": options}


def document_of(config: Config) -> Document:
    """Rereads the file and options that a configuration was loaded from. Raises ConfigError."""
    options = list(zip(config.options[::2], config.options[1::2], strict=True))
    [path] = [value for name, value in options if name == "--config"]
    overrides = [value for name, value in options if name == "--set"]
    return chosen_document(read_document(path, overrides), dict(options).get("--source"))


def _options(path: str, overrides: Sequence[str], source: str | None) -> tuple[str, ...]:
    """Omits overrides of Spark's settings, which may be secrets, because reports repeat these options."""
    repeated = [override for override in overrides if not override.startswith("spark")]
    chosen = () if source is None else ("--source", source)
    return ("--config", path, *chosen, *(word for override in repeated for word in ("--set", override)))

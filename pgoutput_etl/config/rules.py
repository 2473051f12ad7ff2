"""The configuration's rules for tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, fields
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, SkipValidation, model_validator
from pydantic.dataclasses import dataclass as section
from pydantic.json_schema import SkipJsonSchema

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule
from pgoutput_etl.config.column_settings import (
    ADDED,
    COMMENT,
    CONVERTED_FROM,
    RENAMED_FROM,
    TIME_ZONE,
    ColumnDeclaration,
    OneSetting,
    Setting,
    column_setting,
)
from pgoutput_etl.config.key_checks import (
    DIFFERENT,
    SETTINGS,
    Flag,
    Section,
    Settings,
    about,
    as_mapping,
    below,
    items,
    known_keys,
    matching,
    mistake,
    text,
)
from pgoutput_etl.config.layout import check_layout, check_tag
from pgoutput_etl.config.patterns import is_name
from pgoutput_etl.schema.contract import FOLLOW_ALL, OnChange, SchemaContract
from pgoutput_etl.schema.layout import CHANGE_FEED, Layout
from pgoutput_etl.time_zones import ZoneConversion


class Mode(Enum):
    """The contents of a table's Delta table."""

    MIRROR = "mirror"
    SOFT_DELETE = "soft_delete"
    HISTORY = "history"
    APPEND = "append"


DEFAULT_MODE = Mode.MIRROR


class OnMissingRow(Enum):
    """How to handle an UPDATE or DELETE of a row that its table doesn't have."""

    REPORT = "report"
    HOLD = "hold"
    IGNORE = "ignore"


class OnDrop(Enum):
    """How to handle a table that was dropped on the server. All except ARCHIVE keep it; KEEP doesn't report it."""

    REPORT = "report"
    KEEP = "keep"
    ARCHIVE = "archive"


class OnInvalidText(Enum):
    """How to handle text that isn't UTF-8: hold its table, or keep the value's bytes as unrepresentable."""

    HOLD = "hold"
    KEEP = "keep"


def _contract_keys(value: object) -> object:
    return value if isinstance(value, SchemaContract) else known_keys(as_mapping(value), _CONTRACT)


def _only_dropped_are_kept(contract: SchemaContract) -> SchemaContract:
    for part in _CONTRACT:
        if getattr(contract, part) is OnChange.KEEP and part != "drop":
            raise mistake("expected follow, hold or fail: only dropped columns can be kept", part)
    return contract


CONTRACT = "on_schema_change"

_CONTRACT = [part.name for part in fields(SchemaContract)]

PLACEHOLDER = re.compile(r"\{(?:source|schema|table)\}")


def filled(text: str, names: Mapping[str, str]) -> str:
    """The text, with placeholders replaced by names."""
    return PLACEHOLDER.sub(lambda found: names[found[0][1:-1]], text)


_TableName: TypeAlias = Annotated[
    str, matching(r"[^.]+\.[^.]+", "expected schema.table, with one dot"), text("schema.table")
]

_Columns: TypeAlias = Annotated[
    tuple[Annotated[str, text("a column's name")], ...], items("a list of column names"), DIFFERENT
]

_Tag: TypeAlias = Annotated[Mapping[str, Annotated[str, text("a value")]], BeforeValidator(as_mapping)]

_OneColumnSetting: TypeAlias = Literal["drop", "redact", "keep", "added"] | ColumnDeclaration

_ColumnSetting: TypeAlias = _OneColumnSetting | list[_OneColumnSetting]

_Contract: TypeAlias = Annotated[
    SchemaContract, BeforeValidator(_contract_keys), AfterValidator(_only_dropped_are_kept)
]


@section(frozen=True, config=SETTINGS)
class TableRule(Section):
    """The rule for tables whose "schema.table" matches the shell pattern `match`.

    columns: as configured, without salts. rename: the target's schema.table. into: the schema.table that several
    sources or tables share. tag: values by column that mark this table's rows there, with placeholders. cluster_by,
    partition_by, properties, comment, cdf (the change data feed): see `layout`. column_rules: for the masked columns.
    on_schema_change: the contract with the table's readers. on_missing_row: for changes that contradict its rows.
    on_invalid_text: for values that are not UTF-8. on_drop: for a table that is dropped on the server. given: the keys
    in the file, and the parts of on_schema_change; None for a rule made by code.
    """

    computed: ClassVar[frozenset[str]] = frozenset({"column_rules", "given"})

    match: Annotated[
        str,
        text("schema.table as a shell pattern"),
        about(
            "`schema.table` as a shell pattern, in quotes. The first matching rule applies, or with `rules: merge` "
            "[all of them](#rules)",
            "public.audit_*",
        ),
    ]
    skip: Annotated[Flag, about("creates no Delta table", True)] = False
    mode: Annotated[Mode, about("[what the Delta table keeps](modes.md)", "history")] = DEFAULT_MODE
    key: Annotated[
        _Columns | None,
        about("the columns of the key, for REPLICA IDENTITY FULL, where the archive does not name it", ["id"]),
    ] = None
    columns: Annotated[
        Mapping[str, SkipValidation[Setting]],
        BeforeValidator(as_mapping, json_schema_input_type=Mapping[str, _ColumnSetting]),
        about(
            "per column: `drop`, `redact`, `{redact: text}`, or `{hash: sha256}` to [mask it](mask-columns.md); `keep` "
            "to leave it as it is, against [a more general rule](#rules); `added` or `{renamed_from: old}` for an "
            "[ambiguous schema change](schema-changes.md); `{converted_from: timestamp, time_zone: Europe/Berlin}` for "
            "a [change between timestamp and timestamptz](schema-changes.md#timestamp-and-timestamptz); `{comment: "
            "text}`, also beside a mask or a declaration; a list of declarations if several changes need one",
            {"email": {"renamed_from": "mail"}, "note": "drop"},
        ),
    ] = field(default_factory=dict)
    rename: Annotated[
        _TableName | None,
        about(
            "[another `schema.table`](mask-columns.md#rename-a-table) for the target; `{schema}`, `{table}`, "
            "`{source}` stand for names",
            "crm.customer",
        ),
    ] = None
    into: Annotated[
        _TableName | None,
        about("the `schema.table` that several sources or tables [share](shared-tables.md)", "shop.orders"),
    ] = None
    tag: Annotated[
        _Tag,
        about(
            "columns that mark this table's rows there; `{source}`, `{schema}`, `{table}` stand for names",
            {"_pg_source": "{source}"},
        ),
    ] = field(default_factory=dict)
    cluster_by: Annotated[
        _Columns | None,
        about("columns to [cluster](layout.md) the table by, at most 4", ["customer_id", "created_at"]),
    ] = None
    partition_by: Annotated[_Columns | None, about("columns to [partition](layout.md) the table by", ["region"])] = None
    properties: Annotated[
        Settings,
        about("[properties](layout.md) of the Delta table", {"delta.deletedFileRetentionDuration": "interval 30 days"}),
    ] = field(default_factory=dict)
    comment: Annotated[
        Annotated[str, text("a text")] | None,
        about(
            "the Delta table's [comment](layout.md), in place of the [server's](schema-changes.md#catalog-messages)",
            "Orders since 2019",
        ),
    ] = None
    cdf: Annotated[Flag | None, about("the Delta table's [change data feed](layout.md#change-data-feed)", True)] = None
    on_schema_change: Annotated[
        _Contract,
        about(
            "what happens when [columns change](schema-changes.md#contracts): `follow`, `hold`, `fail`, `keep`, by "
            "change; `ambiguous`: `report`, `hold`, `ignore`",
            {"retype": "hold", "drop": "keep"},
        ),
    ] = FOLLOW_ALL
    on_missing_row: Annotated[
        OnMissingRow,
        about(
            "for an UPDATE or DELETE that [meets no row](states.md): `report` it, with exit code 3; `hold` the table; "
            "or `ignore` it",
            "hold",
        ),
    ] = OnMissingRow.REPORT
    on_invalid_text: Annotated[
        OnInvalidText,
        about(
            "for a value that is [not UTF-8](types.md#text-that-is-not-utf-8): `hold` the table, or `keep` the bytes",
            "keep",
        ),
    ] = OnInvalidText.HOLD
    on_drop: Annotated[
        OnDrop,
        about(
            "for a table that [a catalog Message](schema-changes.md#dropped-tables) shows to be dropped: keep it, and "
            "`report` it in each summary; `keep` it; or `archive` it, where displaced tables are",
            "keep",
        ),
    ] = OnDrop.REPORT
    column_rules: SkipJsonSchema[SkipValidation[Mapping[str, ColumnRule]]] = field(default_factory=dict)
    given: SkipJsonSchema[frozenset[str] | None] = field(default=None, compare=False, repr=False)

    @classmethod
    def computed_from(cls, given: dict[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        """Moves each column's mask out of its setting."""
        settings: dict[str, Setting] = {}
        masks: dict[str, ColumnRule] = {}
        with below("columns"):
            for name, value in as_mapping(given.get("columns")).items():
                with below(name):
                    settings[name], mask = column_setting(value, context["environ"])
                masks |= {} if mask is None else {name: mask}
        contract = given.get(CONTRACT)
        parts = {f"{CONTRACT}.{part}" for part in contract} if isinstance(contract, Mapping) else ()
        names = frozenset({*(name for name in given if name != "match" and given[name] is not None), *parts})
        return {**given, "columns": settings, "column_rules": masks, "given": names}

    @model_validator(mode="after")
    def _fit_together(self) -> TableRule:
        check_layout(self.layout, self.properties)
        check_tag(self.into, self.tag, self.layout)
        if self.into is not None and self.rename is not None:
            raise mistake("expected either `rename` or `into`", "rename")
        for name in self.key or ():
            if name in self.column_rules and self.column_rules[name].action is not ColumnAction.HASH:
                why = "it is a column of `key`, which identifies rows: it can only be hashed"
                raise mistake(why, "columns", name)
        self._check_rename()
        return self

    def _check_rename(self) -> None:
        """Raises a `mistake` if a pattern's tables would all get the same name."""
        if self.rename is None or is_name(self.match):
            return
        schema = self.match.partition(".")[0] if "." in self.match else "*"
        needed = {"{table}"} if is_name(schema) else {"{schema}", "{table}"}
        if not needed <= {*PLACEHOLDER.findall(self.rename)}:
            why = (
                f"expected {' and '.join(sorted(needed))} in it, because `match` is a pattern: for several tables in "
                "one, use `into` and `tag`"
            )
            raise mistake(why, "rename")

    @property
    def layout(self) -> Layout:
        feed = {} if self.cdf is None else {CHANGE_FEED: str(self.cdf).lower()}
        partition_by = self.partition_by or (() if self.cluster_by else tuple(self.tag))
        return Layout(
            partition_by,
            self.cluster_by or (),
            {**self.properties, **feed},
            self.comment,
            column_comments=self.column_comments,
        )

    def _column_settings(self) -> Iterator[tuple[str, OneSetting]]:
        """All settings of all columns, with the column's name."""
        for name, configured in self.columns.items():
            for setting in configured if isinstance(configured, list) else [configured]:
                yield name, setting

    @property
    def column_comments(self) -> dict[str, str]:
        settings = self._column_settings()
        return {
            name: setting[COMMENT] for name, setting in settings if isinstance(setting, Mapping) and COMMENT in setting
        }

    @property
    def own_keys(self) -> frozenset[str]:
        """The keys that the rule sets, and the parts of on_schema_change."""
        if self.given is not None:
            return self.given
        blank = TableRule(self.match)
        names = {name for name in self.key_fields() if getattr(self, name) != getattr(blank, name)}  # excludes `match`
        parts = {part for part in _CONTRACT if getattr(self.on_schema_change, part) != getattr(FOLLOW_ALL, part)}
        return frozenset({*names, *(f"{CONTRACT}.{part}" for part in parts)})

    @property
    def fixed_target(self) -> tuple[str, str] | None:
        """The configured schema and table of the target, if all tables of the rule share them."""
        has_names = self.rename is not None and PLACEHOLDER.search(self.rename) is not None
        return None if has_names else self.target_name({})

    def target_name(self, names: Mapping[str, str]) -> tuple[str, str] | None:
        """The configured schema and table of the target. names: of the table's source, schema, and table."""
        name = self.rename if self.into is None else self.into
        if name is None:
            return None
        schema, _, table = name.partition(".")
        return (schema, table) if self.into is not None else (filled(schema, names), filled(table, names))

    @property
    def lineage(self) -> dict[str, tuple[str | None, ...]]:
        """The declared former names of columns, in the order of the changes; None for an added column."""
        declared: dict[str, tuple[str | None, ...]] = {}
        for name, setting in self._column_settings():
            if setting == ADDED:
                declared[name] = (*declared.get(name, ()), None)
            elif isinstance(setting, Mapping) and RENAMED_FROM in setting:
                declared[name] = (*declared.get(name, ()), setting[RENAMED_FROM])
        return declared

    @property
    def conversions(self) -> dict[str, list[ZoneConversion]]:
        """The declared conversions of columns between timestamp and timestamptz."""
        declared: dict[str, list[ZoneConversion]] = {}
        for name, setting in self._column_settings():
            if isinstance(setting, Mapping) and CONVERTED_FROM in setting:
                declared.setdefault(name, []).append(ZoneConversion(setting[CONVERTED_FROM], setting[TIME_ZONE]))
        return declared

"""Writes docs/configuration.md: every key of the configuration.

python -m tools.configuration_page

Types and defaults come from the code. Meanings and examples are below; the code must accept each example.
"""

from __future__ import annotations

import dataclasses
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

import yaml

from pgoutput_etl.config.settings import (
    Config,
    Merge,
    Metrics,
    Source,
    SourceDatabase,
    State,
    TableRule,
    Target,
    load_config,
)
from pgoutput_etl.schema.contract import SchemaContract
from pgoutput_etl.transactions.origin_filter import Origins

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN = "<!-- made by python -m tools.configuration_page -->\n"
END = "<!-- end of what is made -->\n"

# Each section of the file and its class; "" is the top level. `tables` is a list of rules.
SECTIONS: Sequence[tuple[str, type]] = (
    ("source", Source),
    ("target", Target),
    ("state", State),
    ("tables[]", TableRule),
    ("merge", Merge),
    ("metrics", Metrics),
    ("", Config),
)
# Fields of Config that are sections of their own, and fields that are computed instead of configured.
_SECTIONS_OF_CONFIG = {"source", "target", "state", "tables", "merge", "metrics"}
_COMPUTED = {"secrets", "column_rules", "options"}

Example = object
# The meaning of each key, and an example value as in the file.
MEANINGS: Mapping[str, tuple[str, Example]] = {
    "source.name": (
        "the archive of one replication slot; the ledger is kept per source. Letters, digits, `_`, `.`, `-`",
        "shop",
    ),
    "source.landing": ("a folder or a glob, on any file system that Spark reads", "s3a://lake/landing/shop/"),
    "source.framing": ("how files separate messages: [framings](#framings)", "recvlogical"),
    "source.gaps": ("whether [a missing numbered file](guarantees.md#gaps) stops the run", "accept"),
    "source.ignore": (
        "landed files, by name, [to record without applying them](guarantees.md#hostile-files)",
        ["shop-0000007.bin.gz"],
    ),
    "source.origins": ("[whose transactions](ledger.md#origins) are applied", {"skip": ["elsewhere"]}),
    "source.snapshot": (
        (
            "rows from before a table's first change. `manual`: the table is [incomplete](states.md), with exit code "
            "3, until you load them; `auto`: `apply` [loads them](snapshot.md#tables-that-appear-later); `accept`: "
            "there are none, or nobody needs them"
        ),
        "accept",
    ),
    "source.jdbc": (
        "the server, for `snapshot: auto`; user and password come from PGUSER and PGPASSWORD",
        "jdbc:postgresql://db:5432/shop",
    ),
    "target.root": (
        "a folder, with a Delta table per PostgreSQL table at `<root>/<schema>/<table>`. Either this or `catalog`",
        "./warehouse",
    ),
    "target.catalog": (
        "tables `<catalog>.<schema>.<table>` [in a catalog](storage.md#catalogs); requires `state.root`",
        "main",
    ),
    "target.views": (
        "prefix of the schemas with [a view per table](ledger.md#views) as of the last finished batch",
        "bi",
    ),
    "target.readers": ("[the programs that can open the tables](layout.md#readers)", "all"),
    "state.root": ("the folder of the ledger, outside of the tables' folders", "./state"),
    "state.group": (
        "the group that may read [local files with rows' values](storage.md#permissions-of-local-files)",
        "users",
    ),
    "tables[].match": (
        "`schema.table` as a shell pattern, in quotes. The first matching rule applies",
        "public.audit_*",
    ),
    "tables[].skip": ("creates no Delta table", True),
    "tables[].mode": ("[what the Delta table keeps](modes.md)", "history"),
    "tables[].key": (
        "the columns of the key, for REPLICA IDENTITY FULL, where the archive does not name it",
        ["id"],
    ),
    "tables[].columns": (
        (
            "per column: `drop`, `redact`, `{redact: text}`, or `{hash: sha256}` to [mask it](mask-columns.md); "
            "`added` or `{renamed_from: old}` for an [ambiguous schema change](schema-changes.md); `{converted_from: "
            "timestamp, time_zone: Europe/Berlin}` for a [change between timestamp and "
            "timestamptz](schema-changes.md#timestamp-and-timestamptz); a list of these if several changes need one"
        ),
        {"email": {"renamed_from": "mail"}, "note": "drop"},
    ),
    "tables[].rename": ("[another `schema.table`](mask-columns.md#rename-a-table) for the target", "crm.customer"),
    "tables[].into": ("the `schema.table` that several sources or tables [share](shared-tables.md)", "shop.orders"),
    "tables[].tag": (
        "columns that mark this table's rows there; `{source}`, `{schema}`, `{table}` stand for names",
        {"_pg_source": "{source}"},
    ),
    "tables[].on_schema_change": (
        (
            "what happens when [columns change](schema-changes.md#contracts): `follow`, `hold`, `fail`, `keep`, by "
            "change; `ambiguous`: `report`, `hold`, `ignore`"
        ),
        {"retype": "hold", "drop": "keep"},
    ),
    "tables[].on_missing_row": (
        (
            "for an UPDATE or DELETE that [meets no row](states.md): `report` it, with exit code 3; `hold` the table; "
            "or `ignore` it"
        ),
        "hold",
    ),
    "tables[].on_invalid_text": (
        "for a value that is [not UTF-8](types.md#text-that-is-not-utf-8): `hold` the table, or `keep` the bytes",
        "keep",
    ),
    "tables[].cluster_by": ("columns to [cluster](layout.md) the table by, at most 4", ["customer_id", "created_at"]),
    "tables[].partition_by": ("columns to [partition](layout.md) the table by", ["region"]),
    "tables[].properties": (
        "[properties](layout.md) of the Delta table",
        {"delta.deletedFileRetentionDuration": "interval 30 days"},
    ),
    "tables[].comment": ("the Delta table's [comment](layout.md)", "Orders since 2019"),
    "tables[].cdf": ("the Delta table's [change data feed](layout.md#change-data-feed)", True),
    "merge.max_transactions": (
        ("most committed transactions per [batch](guarantees.md#a-long-backlog), by whole files"),
        1000,
    ),
    "merge.parallel_tables": ("tables written, verified, or maintained at a time", 8),
    "metrics.json": (
        "a file to which each run appends [a line](runbook.md#json-lines), or `stderr`",
        "./runs.jsonl",
    ),
    "metrics.prometheus": (
        "a file that each run replaces, ending in `.prom`, in an existing folder",
        "./shop.prom",
    ),
    "metrics.opentelemetry": ("exports metrics through OpenTelemetry", True),
    "metrics.openlineage": (
        "sends [lineage](neighbors.md#openlineage) through OpenLineage; names the archive's server and database",
        {"namespace": "postgres://db.example:5432", "database": "shop"},
    ),
    "types": (
        "the [type](types.md#configure-types) that a named type's values get",
        {"public.posint": "int4", "jsonb": "variant"},
    ),
    "on_error": (
        ("unreadable bytes: quarantine them with everything that may depend on them, or stop before writing"),
        "fail",
    ),
    "spark": (
        (
            "session settings; `spark.remote` names a [Spark Connect](deploy.md#spark-connect) server. Settings from "
            "the environment are kept out of Spark's UI and logs"
        ),
        {"spark.sql.shuffle.partitions": 64},
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    path: str
    values: str
    default: str

    @property
    def is_required(self) -> bool:
        return self.default == "required"


def all_keys() -> Iterator[tuple[str, list[Key]]]:
    """Each section with its keys, in the order of the code."""
    for section, section_class in SECTIONS:
        hints = typing.get_type_hints(section_class)
        keys = []
        for field in dataclasses.fields(section_class):
            if field.name in _COMPUTED or (section_class is Config and field.name in _SECTIONS_OF_CONFIG):
                continue
            path = f"{section}.{field.name}" if section else field.name
            default = "`<target.root>/_pgoutput_etl`" if path == "state.root" else _default(field)
            keys.append(Key(path, _accepted_values(hints[field.name]), default))
        yield section, keys


def _default(field: dataclasses.Field[object]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return "none"
    if field.default is dataclasses.MISSING:
        return "required"
    match field.default:
        case None:
            return "none"
        case Enum(value=value):
            return f"`{value}`"
        case bool(value):
            return f"`{str(value).lower()}`"
        case Origins():
            return "`any`"
        case SchemaContract():
            return "`follow`"
        case value:
            return f"`{value}`"


def _accepted_values(hint: object) -> str:
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    if isinstance(hint, types.UnionType) and len(parts) == 1:
        return _accepted_values(parts[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{choice.value}`" for choice in hint)
    if hint is SourceDatabase:
        return "`{namespace: …, database: …}`"
    if hint is Origins:
        return "`any`, `none`, `{accept: […]}`, `{skip: […]}`"
    if typing.get_origin(hint) is tuple:
        return "list of names"
    if typing.get_origin(hint) is Mapping or hint is SchemaContract:
        return "mapping"
    names = {str: "string", bool: "`true`, `false`", int: "positive integer"}
    return names[typing.cast(type, hint)]


def example(path: str) -> dict[str, object]:
    """A complete configuration with this key's example value; otherwise only required keys are set."""
    config: dict[str, dict[str, object]] = {
        "source": {"name": "shop", "landing": "./landing/shop"},
        "target": {"root": "./warehouse"},
    }
    _, value = MEANINGS[path]
    section, _, name = path.rpartition(".")
    if path in ("target.catalog", "target.views"):
        return {**config, "target": {"catalog": "main", name: value}, "state": {"root": "./state"}}
    if path in ("tables[].into", "tables[].tag"):
        shared = {key: MEANINGS[f"tables[].{key}"][1] for key in ("into", "tag")}
        return {**config, "tables": [{"match": "public.customers", **shared}]}
    if section == "tables[]":
        return {**config, "tables": [{"match": "public.customers", name: value}]}
    if not section:
        return {**config, name: value}
    return {**config, section: {**config.get(section, {}), name: value}}


def check_example(path: str) -> None:
    """Raises ConfigError if the code rejects the example."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "example.yaml")
        file.write_text(yaml.safe_dump(example(path)), encoding="utf-8")
        load_config(str(file), environ={})


def tables() -> str:
    lines = []
    for section, keys in all_keys():
        title = {"": "Other keys", "tables[]": "tables (a list of rules)"}.get(section, section)
        lines += [f"\n## {title}\n", "| key | value | default | meaning |", "| --- | --- | --- | --- |"]
        for key in keys:
            meaning, value = MEANINGS[key.path]
            name = key.path.removeprefix("tables[].")
            shown = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
            check_example(key.path)
            lines.append(f"| `{name}` | {key.values} | {key.default} | {meaning}. Example: `{shown}` |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with its tables regenerated."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

"""Writes docs/configuration.md: every key of the configuration.

python -m tools.configuration_page

Types and defaults come from the code; meanings and examples, which the code must accept, are here.
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

from pgoutput_etl.config.settings import Config, Merge, Metrics, Source, State, TableRule, Target, load_config
from pgoutput_etl.transactions.origin_filter import Origins

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN = "<!-- made by python -m tools.configuration_page -->\n"
END = "<!-- end of what is made -->\n"

# A section's name, where its keys stand, and its class. `tables` is a list of rules.
SECTIONS: Sequence[tuple[str, type]] = (
    ("source", Source),
    ("target", Target),
    ("state", State),
    ("tables[]", TableRule),
    ("merge", Merge),
    ("metrics", Metrics),
    ("", Config),
)
# Of Config itself: those that are no section, and what is worked out and not given.
_SECTIONS_OF_CONFIG = {"source", "target", "state", "tables", "merge", "metrics"}
_NOT_GIVEN = {"secrets", "column_rules"}

Example = object
# What it is for, and a value, as in the file.
MEANINGS: Mapping[str, tuple[str, Example]] = {
    "source.name": (
        "one replication slot's archive; the ledger is kept per source. Letters, digits, `_`, `.` and `-`",
        "shop",
    ),
    "source.landing": ("a folder or a glob, on any file system that Spark reads", "s3a://lake/landing/shop/"),
    "source.framing": (
        "how files are cut into messages; `auto` finds out. [Framings](../README.md#what-is-understood)",
        "recvlogical",
    ),
    "source.gaps": ("what of [numbered files of which one is missing](reliability.md)", "accept"),
    "source.origins": ("whose transactions are applied. [Origins](messages.md#origins)", {"skip": ["elsewhere"]}),
    "target.root": (
        "a folder: a Delta table per PostgreSQL table, at `<root>/<schema>/<table>`. This or `catalog`",
        "./warehouse",
    ),
    "target.catalog": (
        "tables `<catalog>.<schema>.<table>` [in a catalog](catalogs.md) instead. `state.root` has to be given then",
        "main",
    ),
    "state.root": (
        (
            "the folder of the ledger; not one that tables could be in. Without it, beside the tables: "
            "`<target.root>/_pgoutput_etl`"
        ),
        "./state",
    ),
    "tables[].match": (
        "`schema.table` as a shell pattern: `public.audit_*`. The first rule that matches holds; in quotes",
        "public.audit_*",
    ),
    "tables[].skip": ("no Delta table is made of it", True),
    "tables[].mode": ("what the Delta table holds. [Modes](modes.md)", "history"),
    "tables[].key": (
        "the columns that tell rows apart, for a table with REPLICA IDENTITY FULL, whose key the archive doesn't tell",
        ["id"],
    ),
    "tables[].columns": (
        (
            "per column: `drop`, `redact`, `{redact: text}` or `{hash: sha256}`, [before anything of it is "
            "kept](columns.md); `added`, or `{renamed_from: old}`, where "
            "[the archive leaves it open](schema-changes.md)"
        ),
        {"email": {"renamed_from": "mail"}, "note": "drop"},
    ),
    "tables[].rename": ("[another `schema.table`](columns.md#rename) for the target", "crm.customer"),
    "merge.max_transactions": (
        (
            "committed transactions in one batch at most, by whole files; without it, all that is new is one. "
            "[Steps](reliability.md#a-long-backlog-in-steps)"
        ),
        1000,
    ),
    "merge.parallel_tables": ("tables that are written at the same time", 8),
    "metrics.json": ("a file that each run adds a line to, or `stderr`. [Metrics](metrics.md)", "./runs.jsonl"),
    "metrics.prometheus": (
        "a file that each run replaces, ending in `.prom`, in a folder that is there",
        "./shop.prom",
    ),
    "metrics.opentelemetry": ("figures through OpenTelemetry's library, as its environment variables say", True),
    "types": (
        "a type's name, and what its values become. [Types](types.md#the-configurations-types)",
        {"public.posint": "int4", "jsonb": "variant"},
    ),
    "on_error": (
        (
            "what becomes of bytes that can't be read: set aside, with all that may depend on them, or the run stops "
            "before it writes"
        ),
        "fail",
    ),
    "spark": (
        (
            "settings of the session; `spark.remote` names a "
            "[Spark Connect](spark-connect.md) server. Those from the environment are kept out of Spark's UI and logs"
        ),
        {"spark.sql.shuffle.partitions": 64},
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    path: str
    takes: str
    default: str

    @property
    def is_required(self) -> bool:
        return self.default == "required"


def all_keys() -> Iterator[tuple[str, list[Key]]]:
    """Each section with its keys, in the order of the code."""
    for section, of in SECTIONS:
        hints = typing.get_type_hints(of)
        found = []
        for field in dataclasses.fields(of):
            if field.name in _NOT_GIVEN or (of is Config and field.name in _SECTIONS_OF_CONFIG):
                continue
            path = f"{section}.{field.name}" if section else field.name
            default = _default(field) if of is not State else "beside the tables"
            found.append(Key(path, _takes(hints[field.name]), default))
        yield section, found


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
        case value:
            return f"`{value}`"


def _takes(hint: object) -> str:
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    if isinstance(hint, types.UnionType) and len(parts) == 1:
        return _takes(parts[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{choice.value}`" for choice in hint)
    if hint is Origins:
        return "`any`, `none`, `{accept: […]}`, `{skip: […]}`"
    if typing.get_origin(hint) is tuple:
        return "a list of names"
    if typing.get_origin(hint) is Mapping:
        return "a mapping"
    names = {str: "text", bool: "`true`, `false`", int: "a whole number, 1 or more"}
    return names[typing.cast(type, hint)]


def example(path: str) -> dict[str, object]:
    """A whole configuration in which this key has its example's value, and no other has one that need not."""
    config: dict[str, dict[str, object]] = {
        "source": {"name": "shop", "landing": "./landing/shop"},
        "target": {"root": "./warehouse"},
    }
    _, value = MEANINGS[path]
    section, _, name = path.rpartition(".")
    if path == "target.catalog":
        return {**config, "target": {"catalog": value}, "state": {"root": "./state"}}
    if section == "tables[]":
        return {**config, "tables": [{"match": "public.customers", name: value}]}
    if not section:
        return {**config, name: value}
    return {**config, section: {**config.get(section, {}), name: value}}


def accepted(path: str) -> None:
    """Raises ConfigError for an example that the code doesn't take."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "example.yaml")
        file.write_text(yaml.safe_dump(example(path)), encoding="utf-8")
        load_config(str(file), environ={})


def tables() -> str:
    lines = []
    for section, found in all_keys():
        title = {"": "Others", "tables[]": "tables: a list of rules"}.get(section, section)
        lines += [f"\n## {title}\n", "| key | takes | default | |", "| --- | --- | --- | --- |"]
        for key in found:
            meaning, value = MEANINGS[key.path]
            name = key.path.removeprefix("tables[].")
            shown = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
            accepted(key.path)
            lines.append(f"| `{name}` | {key.takes} | {key.default} | {meaning}. Such as `{shown}` |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its tables as they are now."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

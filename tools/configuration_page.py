"""Writes docs/configuration.md and the JSON Schema: every key of the configuration.

python -m tools.configuration_page

Types, defaults, meanings, and examples come from the classes of the configuration, which must accept each example.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path

import yaml
from pydantic.fields import FieldInfo

from pgoutput_etl.config import json_schema
from pgoutput_etl.config.key_checks import Section
from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import (
    CatalogKey,
    Config,
    Merge,
    Metrics,
    Notify,
    Source,
    SourceDatabase,
    State,
    Target,
    load_config,
)
from pgoutput_etl.schema.contract import SchemaContract
from pgoutput_etl.transactions.origin_filter import Origins

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
BEGIN = "<!-- made by python -m tools.configuration_page -->\n"
END = "<!-- end of what is made -->\n"

# Each section of the file and its class; "" is the top level. `tables` is a list of rules.
SECTIONS: Sequence[tuple[str, type[Section]]] = (
    ("source", Source),
    ("target", Target),
    ("state", State),
    ("tables[]", TableRule),
    ("merge", Merge),
    ("metrics", Metrics),
    ("", Config),
)
# Keys of Config that are sections of their own.
_SECTIONS = {"source", "target", "state", "tables", "merge", "metrics"}


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    path: str
    values: str
    default: str
    meaning: str
    example: object


def all_keys() -> Iterator[tuple[str, list[Key]]]:
    """Each section with its keys, in the order of the code."""
    for section, section_class in SECTIONS:
        fields = section_class.key_fields().items()
        yield section, [_key(section, name, field) for name, field in fields if section or name not in _SECTIONS]


def _key(section: str, name: str, field: FieldInfo) -> Key:
    path = f"{section}.{name}" if section else name
    default = "`<target.root>/_pgoutput_etl`" if path == "state.root" else _default(field)
    [example] = field.examples or [None]
    return Key(path, _accepted_values(field.annotation), default, field.description or "", example)


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "none"
    match field.default:
        case None | ():
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
            return "required" if field.is_required() else f"`{value}`"


def _accepted_values(hint: object) -> str:
    parts = [part for part in typing.get_args(hint) if part is not types.NoneType]
    if typing.get_origin(hint) in (types.UnionType, typing.Union, typing.Annotated):
        return _accepted_values(parts[0])
    if isinstance(hint, type) and issubclass(hint, Enum):
        return ", ".join(f"`{choice.value}`" for choice in hint)
    if hint is SourceDatabase:
        return "`{namespace: …, database: …}`"
    if hint is Notify:
        return "`{url: …, on: […]}`"
    if hint is CatalogKey:
        return "`${NAME}`"
    if hint is Origins:
        return "`any`, `none`, `{accept: […]}`, `{skip: […]}`"
    if typing.get_origin(hint) is tuple:
        return "list of names"
    if typing.get_origin(hint) is Mapping or hint in (SchemaContract, TableRule):
        return "mapping"
    names = {str: "string", bool: "`true`, `false`", int: "positive integer"}
    return names[typing.cast(type, hint)]


def example(key: Key) -> dict[str, object]:
    """A complete configuration with this key's example value; otherwise only required keys are set."""
    config: dict[str, dict[str, object]] = {
        "source": {"name": "shop", "landing": "./landing/shop"},
        "target": {"root": "./warehouse"},
    }
    section, _, name = key.path.rpartition(".")
    if key.path in ("target.catalog", "target.views"):
        return {**config, "target": {"catalog": "main", name: key.example}, "state": {"root": "./state"}}
    if name in ("into", "tag"):
        other = {"tag": {"a": "{table}"}} if name == "into" else {"into": "a.b"}
        return {**config, "tables": [{"match": "public.customers", name: key.example, **other}]}
    if section == "tables[]":
        return {**config, "tables": [{"match": "public.customers", name: key.example}]}
    if not section:
        return {**config, name: key.example}
    return {**config, section: {**config.get(section, {}), name: key.example}}


def check_example(key: Key) -> None:
    """Raises ConfigError if the code rejects the example."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "example.yaml")
        file.write_text(yaml.safe_dump(example(key)), encoding="utf-8")
        load_config(str(file), environ={"CATALOG_KEY": "0" * 64, "SHOP_WEBHOOK": "https://hooks.example/shop"})


def tables() -> str:
    lines = []
    for section, keys in all_keys():
        title = {"": "Other keys", "tables[]": "tables (a list of rules)"}.get(section, section)
        lines += [f"\n## {title}\n", "| key | value | default | meaning |", "| --- | --- | --- | --- |"]
        for key in keys:
            name = key.path.removeprefix("tables[].")
            shown = yaml.safe_dump(key.example, default_flow_style=True, width=1000).removesuffix("...\n").strip()
            check_example(key)
            lines.append(f"| `{name}` | {key.values} | {key.default} | {key.meaning}. Example: `{shown}` |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """Return the page with its tables regenerated."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{tables()}\n{END}{rest.partition(END)[2]}"


def schema_text() -> str:
    return json.dumps(json_schema.json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    json_schema.FILE.write_text(schema_text(), encoding="utf-8")

"""The configuration's JSON Schema, for editors: `python -m tools.configuration_page` writes the file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from pgoutput_etl.config.settings import Config
from pgoutput_etl.config.sources import SOURCE, SOURCES

FILE = Path(__file__).with_name("schema.json")

_DRAFT = "https://json-schema.org/draft/2020-12/schema"

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")

_SEVERAL = "several sources, each with the keys of `source`; they share the other sections"

# The keys of a rule that applies to all tables
_DEFAULTS = "Defaults"

# Keys whose default is made from other keys
_FOLLOW_FROM_OTHERS = {"state", "root"}


def json_schema() -> dict[str, Any]:
    """The schema of what `load_config` accepts, except for conditions that involve several keys."""
    schema = TypeAdapter(Config).json_schema()
    definitions = {name: _of_class(found) for name, found in schema.pop("$defs").items()}
    whole = _of_class(schema)
    definitions[_DEFAULTS] = _without(definitions["TableRule"], "match")
    whole["properties"]["defaults"]["$ref"] = f"#/$defs/{_DEFAULTS}"
    source = whole["properties"]["source"]
    whole["properties"] |= {SOURCES: {"type": "array", "items": source, "minItems": 1, "description": _SEVERAL}}
    whole["required"] = [name for name in whole["required"] if name != SOURCE]
    whole["oneOf"] = [{"required": [SOURCE]}, {"required": [SOURCES]}]
    used = _used({"": whole}, definitions)
    return {"$schema": _DRAFT, "title": "pgoutput_etl", **whole, "$defs": {name: definitions[name] for name in used}}


def _without(found: dict[str, Any], key: str) -> dict[str, Any]:
    properties = {name: value for name, value in found["properties"].items() if name != key}
    return {**found, "properties": properties, "required": [name for name in found["required"] if name != key]}


def _of_class(found: dict[str, Any]) -> dict[str, Any]:
    """The class's schema, without text meant for readers of the code."""
    kept = {key: value for key, value in found.items() if key not in ("title", "description", "properties", "required")}
    if "properties" not in found:
        return kept
    properties = {name: _of_key(value) for name, value in found["properties"].items()}
    required = [name for name in found.get("required", ()) if name not in _FOLLOW_FROM_OTHERS]
    return {**kept, "properties": properties, "required": required, "additionalProperties": False}


def _of_key(found: dict[str, Any]) -> dict[str, Any]:
    text = {"description": _LINK.sub(r"\1", found["description"])} if "description" in found else {}
    return {key: value for key, value in found.items() if key != "title"} | text


def _used(part: Any, definitions: dict[str, Any]) -> list[str]:
    """The names of the definitions that a part refers to, directly or indirectly."""
    names: dict[str, None] = {}
    parts = [part]
    while parts:
        match parts.pop():
            case {"$ref": str(reference)} if reference.rpartition("/")[2] not in names:
                name = reference.rpartition("/")[2]
                names[name] = None
                parts.append(definitions[name])
            case dict(mapping):
                parts.extend(mapping.values())
            case list(listed):
                parts.extend(listed)
            case _:
                pass
    return sorted(names)

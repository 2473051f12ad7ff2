"""Columns as JSON Schema and Avro, checked by the libraries that read them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fastavro
import pytest
from jsonschema import Draft202012Validator

from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.cli import main
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ledger.tables import table_row
from pgoutput_etl.outputs.documents import avro_schema, json_schema
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.table_shape import table_columns
from pgoutput_etl.types import NO_USER_TYPES, UserTypes
from tests.core.targets.test_planner import state_of
from tests.support.small_archives import T, table
from tests.support.small_ledger import SmallLedger

NIGHT = datetime(2026, 11, 1, 3, tzinfo=timezone.utc)
BOOL, BYTEA, INT2, INT4, INT8, TEXT, FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ = (
    16, 17, 21, 23, 20, 25, 700, 701, 1082, 1114, 1184
)  # fmt: skip
NUMERIC, JSONB, INT4_ARRAY, POINT, INT4_RANGE = 1700, 3802, 1007, 600, 3904
EVERY = table(
    ("id", INT8), ("b", BOOL), ("y", BYTEA), ("s", INT2), ("i", INT4), ("t", TEXT), ("f", FLOAT4), ("d", FLOAT8),
    ("day", DATE), ("at", TIMESTAMP), ("utc", TIMESTAMPTZ), ("n", NUMERIC), ("j", JSONB), ("l", INT4_ARRAY),
    ("p", POINT), ("r", INT4_RANGE), ("a b", TEXT), ("a-b", TEXT), ("1", TEXT),
)  # fmt: skip


def documents(relation: Relation, types: UserTypes = NO_USER_TYPES) -> tuple[dict[str, Any], dict[str, Any]]:
    columns = table_columns(relation, (), types)
    keys = [column.name for column in relation.columns if column.is_key]
    return json_schema("urn:x:1", "public.t", columns, keys), avro_schema("shop_public", "t", columns, keys)


def test_a_json_schema_accepts_what_spark_would_write_and_no_null_in_the_key() -> None:
    schema, _ = documents(EVERY)
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    row = {"id": 1, "b": True, "y": "AA==", "s": 1, "f": 1.5, "day": "2026-01-01", "l": [1, None], "t": None}
    validator.validate(row)
    for wrong in ({}, {**row, "id": None}, {**row, "s": 40_000}, {**row, "l": ["x"]}, {**row, "b": 1}):
        assert list(validator.iter_errors(wrong)), wrong
    assert schema["properties"]["utc"] == {
        "type": ["string", "null"], "format": "date-time", "description": "timestamptz"
    }  # fmt: skip
    assert schema["required"] == ["id"]


def test_an_avro_schema_is_one_with_unique_plain_names() -> None:
    _, schema = documents(EVERY)
    fastavro.parse_schema(schema)
    fields = {field["name"]: field for field in schema["fields"]}
    assert fields["id"]["type"] == "long"
    assert fields["at"]["type"][1]["logicalType"] == "local-timestamp-micros"
    assert [fields[name]["postgres_name"] for name in ("a_b", "a_b_", "_1")] == ["a b", "a-b", "1"]


def test_types_of_the_configuration_are_described() -> None:
    text = {"jsonb": "variant"}
    schema, avro = documents(table(("id", INT8), ("j", JSONB)), UserTypes.of((), text))
    fastavro.parse_schema(avro)
    assert schema["properties"]["j"] == {"description": "jsonb"}


def test_the_job_writes_every_version_that_a_batch_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = SmallLedger(tmp_path)
    first = replace(state_of(table(), types=["string"] * 2), path=Place(str(tmp_path / "public" / "t")))
    second = replace(state_of(table("id", "v", "w"), types=["string"] * 3), path=first.path)
    hostile = replace(first, oid=T + 1, schema="..", table="a/b")
    displaced = replace(second, oid=T + 2, path=Place(f"{tmp_path}/ledger/displaced/{T + 2}"))
    for number, states in enumerate(([first], [first, hostile], [second, hostile, displaced]), 1):
        ledger.finish(number, NIGHT, 0x100 * number, [table_row(state) for state in states])
    config = tmp_path / "status.yaml"
    config.write_text(
        f"source: {{name: shop, landing: '{ledger.landing}'}}\ntarget: {{root: '{tmp_path / 'out'}'}}\n"
        f"state: {{root: '{ledger.config().state.root}'}}\n"
    )
    assert main(["status", "--config", str(config), "--json", "--schemas", str(tmp_path / "schemas")]) == 0
    capsys.readouterr()
    written = {
        str(path.relative_to(tmp_path / "schemas")) for path in (tmp_path / "schemas").rglob("*.*") if path.is_file()
    }
    folders = ("public/t/1", "public/t/2", "%2E%2E/a%2Fb/1")
    assert written == {f"{folder}.{ending}" for folder in folders for ending in ("schema.json", "avsc")}
    newest = json.loads((tmp_path / "schemas/public/t/2.schema.json").read_text())
    assert (list(newest["properties"]), newest["x-version"]) == (["id", "v", "w"], 2)


def test_a_folder_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "none/schemas"):
        with pytest.raises(ConfigError, match="--schemas: expected a folder"):
            StatusRequest(schemas=str(tmp_path / folder)).check()

"""Editors with the JSON Schema accept what the job accepts, and mark what it refuses because of one key alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from pgoutput_etl.config.json_schema import FILE
from tests.core.config.test_rule_merge import FOR_500_TABLES
from tests.core.config.test_settings import CONF, EVERYTHING, SMALLEST
from tests.core.config.test_sources import TWO
from tools.configuration_page import all_keys, example

SCHEMA: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))


def problems(text: str) -> list[str]:
    found = Draft202012Validator(SCHEMA).iter_errors(yaml.safe_load(text))
    return sorted(error.json_path for error in found)


def accepted() -> Iterator[Any]:
    yield pytest.param(SMALLEST, id="smallest")
    yield pytest.param(TWO, id="several sources")
    yield pytest.param(FOR_500_TABLES, id="rules")
    yield pytest.param(EVERYTHING.replace("no]", "'no']"), id="everything")  # a text in the YAML of editors
    yield pytest.param(
        SMALLEST + "tables: [{match: a.b, skip: '${YES}'}]\nmerge: {parallel_tables: '${FOUR}'}", id="${}"
    )
    yield from (pytest.param(file.read_text(encoding="utf-8"), id=file.name) for file in sorted(CONF.glob("*.yaml")))
    for _, keys in all_keys():
        yield from (pytest.param(yaml.safe_dump(example(key)), id=key.path) for key in keys)


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", list(accepted()))
def test_what_the_job_accepts(text: str) -> None:
    assert problems(text) == []


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ("tragte: {}", "$"),
        ("tables: [{match: a.b, kee: [id]}]", "$.tables[0]"),
        ("tables: [{skip: true}]", "$.tables[0]"),
        ("tables: [{match: a.b, column_rules: {}}]", "$.tables[0]"),
        ("tables: [{match: a.b, mode: copy}]", "$.tables[0].mode"),
        ("tables: [{match: a.b, columns: {x: hide}}]", "$.tables[0].columns.x"),
        ("tables: [{match: a.b, columns: {x: {hsh: sha256}}}]", "$.tables[0].columns.x"),
        ("tables: [{match: a.b, on_schema_change: {drp: keep}}]", "$.tables[0].on_schema_change"),
        ("merge: {parallel_tables: 0}", "$.merge.parallel_tables"),
        ("on_error: stop", "$.on_error"),
        ("spark: {a: [b]}", "$.spark.a"),
        ("secrets: [a]", "$"),
        ("sources: [{name: a, landing: b}]", "$"),
        ("defaults: {match: a.b}", "$.defaults"),
        ("rules: all", "$.rules"),
    ],
)
def test_what_it_refuses(more: str, path: str) -> None:
    assert problems(SMALLEST + more) == [path]


def test_it_shows_no_link_and_no_text_for_developers() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert "](" not in text
    assert "computed" not in text

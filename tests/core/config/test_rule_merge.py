"""Rules that merge: what each table gets, whatever the order of rules, and the conflicts that are refused."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.config.column_rules import DROP, ColumnAction
from pgoutput_etl.config.rules import Mode, OnMissingRow, TableRule
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.schema.contract import OnChange, SchemaContract
from tests.core.config.test_settings import ENVIRON, SMALLEST

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
[FOR_500_TABLES] = re.findall(r"## Rules\n.*?```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def load(text: str, file: Path) -> Config:
    file.write_text(text, encoding="utf-8")
    return load_config(str(file), environ=ENVIRON)


def test_a_configuration_of_20_lines_gives_500_tables_their_settings(tmp_path: Path) -> None:
    assert FOR_500_TABLES.count("\n") <= 20
    config = load(FOR_500_TABLES, tmp_path / "shop.yaml")
    for n in range(125):
        plain = config.rule_for("public", f"t{n}")
        assert target_of(config, "public", f"t{n}") == ("shop", f"t{n}")
        assert (plain.mode, plain.on_missing_row, plain.skip) == (Mode.MIRROR, OnMissingRow.HOLD, False)
        assert plain.properties == {"delta.logRetentionDuration": "interval 30 days"}
        assert (plain.column_rules["email"].action, plain.column_rules["password"]) == (ColumnAction.HASH, DROP)
        bill = config.rule_for("billing", f"t{n}")
        assert (bill.mode, {*bill.column_rules}) == (Mode.HISTORY, {"email", "password", "iban"})
        assert target_of(config, f"tenant_{n}", "orders") == ("tenants", f"tenant_{n}_orders")
        event = config.rule_for("public", f"event_{n}")
        assert (event.mode, event.partition_by, {*event.column_rules}) == (Mode.APPEND, ("day",), {"password"})
    assert config.rule_for("billing", "audit_2026").skip
    assert config.rule_for("other", "t").skip
    log = config.rule_for("public", "event_log")
    assert (log.mode, log.partition_by, log.on_missing_row) == (Mode.APPEND, ("day", "kind"), OnMissingRow.IGNORE)
    invoices = config.rule_for("billing", "invoices")
    assert (invoices.mode, invoices.key) == (Mode.HISTORY, ("id",))
    assert {*invoices.properties} == {"delta.logRetentionDuration", "delta.checkpointInterval"}
    assert invoices.on_schema_change == SchemaContract(drop=OnChange.KEEP)


def target_of(config: Config, schema: str, table: str) -> tuple[str, str] | None:
    return config.rule_for(schema, table).target_name({"source": "shop", "schema": schema, "table": table})


@pytest.mark.parametrize(
    ("general", "specific", "effective"),
    [
        # Mappings are merged by key.
        ("columns: {a: drop, b: drop}", "columns: {b: redact, c: drop}", "columns: {a: drop, b: redact, c: drop}"),
        ("columns: {a: drop}", "columns: {a: keep}", "columns: {a: keep}"),
        ("columns: {a: {renamed_from: b}}", "columns: {a: {redact: x}}", "columns: {a: {redact: x}}"),
        ("properties: {a.b: 1, a.c: 2}", "properties: {a.c: 3}", "properties: {a.b: 1, a.c: 3}"),
        (
            "on_schema_change: {add: hold}",
            "on_schema_change: {drop: keep}",
            "on_schema_change: {add: hold, drop: keep}",
        ),
        ("on_schema_change: {add: hold}", "on_schema_change: {add: follow}", "on_schema_change: {add: follow}"),
        ("into: a.b, tag: {x: '1'}", "into: a.b, tag: {x: '2'}", "into: a.b, tag: {x: '2'}"),
        # Lists and other values are replaced, also by what would be the default.
        ("key: [a, b]", "key: [c]", "key: [c]"),
        ("partition_by: [a, b]", "partition_by: [b]", "partition_by: [b]"),
        ("mode: history", "mode: mirror", "mode: mirror"),
        ("skip: true", "skip: false", "skip: false"),
        ("cdf: true, comment: x", "comment: y", "cdf: true, comment: y"),
        # An alternative replaces the other one.
        ("cluster_by: [a]", "partition_by: [b]", "partition_by: [b]"),
        ("partition_by: [b]", "cluster_by: [a]", "cluster_by: [a]"),
        ("rename: 'x.{schema}_{table}'", "into: a.b, tag: {x: '1'}", "into: a.b, tag: {x: '1'}"),
        ("into: a.b, tag: {x: '1'}", "rename: 'x.{table}'", "rename: 'x.{table}'"),
        # A null is no value.
        ("mode: history", "mode: null, key: [a]", "mode: history, key: [a]"),
    ],
)
def test_a_specific_rule_over_a_general_one(tmp_path: Path, general: str, specific: str, effective: str) -> None:
    file = tmp_path / "shop.yaml"
    expected = load(f"{SMALLEST}tables: [{{match: 'public.*', {effective}}}]", file).tables[0]
    for rules in (
        f"rules: merge\ntables: [{{match: 'public.*', {specific}}}, {{match: '*', {general}}}]",
        f"defaults: {{{general}}}\ntables: [{{match: 'public.*', {specific}}}]",
        f"rules: merge\ndefaults: {{{general}}}\ntables: [{{match: 'public.*', {specific}}}]",
    ):
        assert load(SMALLEST + rules, file).rule_for("public", "a") == expected


def test_defaults_hold_for_tables_without_a_rule_and_under_the_first_match(tmp_path: Path) -> None:
    rules = "defaults: {mode: history}\ntables: [{match: a.b, key: [id]}, {match: 'a.*', mode: append}]"
    config = load(SMALLEST + rules, tmp_path / "shop.yaml")
    assert config.rule_for("a", "b") == TableRule("a.b", mode=Mode.HISTORY, key=("id",))
    assert config.rule_for("a", "c") == TableRule("a.*", mode=Mode.APPEND)
    assert config.rule_for("x", "y") == TableRule("*", mode=Mode.HISTORY)


def test_include_skips_all_other_tables_and_their_rules_stay(tmp_path: Path) -> None:
    rules = "include: [public.orders, 'billing.*']\ntables: [{match: 'public.*', columns: {a: drop}}]"
    config = load(SMALLEST + rules, tmp_path / "shop.yaml")
    assert not config.rule_for("public", "orders").skip
    assert not config.rule_for("billing", "x").skip
    other = config.rule_for("public", "other")
    assert (other.skip, other.column_rules) == (True, {"a": DROP})


@pytest.mark.parametrize(
    ("more", "where"),
    [
        (
            "rules: merge\ntables: [{match: 'a.*', mode: history}, {match: 'a.*', mode: append}]",
            "tables[1].mode: tables[0]",
        ),
        ("rules: merge\ntables: [{match: a.b, key: [x]}, {match: a.b, key: [y]}]", "tables[1].key: tables[0] is as"),
        (
            "rules: merge\ntables: [{match: 'a*.b', cluster_by: [x]}, {match: 'a?.b', partition_by: [x]}]",
            "tables[1].cluster_by: tables[0] is as specific, matches some of the same names, and differs",
        ),
        (
            "rules: merge\ntables: [{match: 'a.*', columns: {id: drop}}, {match: a.b, key: [id]}]",
            "tables[1].columns.id: it is a column of `key`",
        ),
        (
            "rules: merge\ntables: [{match: '*.b', key: [id]}, {match: 'aa*', columns: {id: drop}}]",
            "it is a column of `key`, which identifies rows: it can only be hashed (merged with tables[0])",
        ),
        ("defaults: {columns: {id: drop}}\ntables: [{match: a.b, key: [id]}]", "(merged with defaults)"),
        (
            "defaults: {columns: {a: drop}}\ntables: [{match: a.b, columns: {a: {renamed_from: b}}}]",
            "tables[0].columns.a: expected a mask, or keep: another rule masks the column (merged with defaults)",
        ),
        (
            "rules: merge\ntables: [{match: a.b, columns: {a: added}}, {match: a.b, columns: {a: drop}}]",
            "tables[0].columns.a: expected a mask, or keep: another rule masks the column (merged with tables[1])",
        ),
        ("defaults: {match: a.b}", "defaults.match: unknown key 'match'"),
        ("defaults: {mode: copy}", "defaults.mode: expected one of mirror"),
        ("defaults: {rename: a.b}", "defaults.rename: expected {schema} and {table} in it"),
        ("defaults: [mode]", "defaults: expected a mapping"),
        ("defaults: {on_drop: archive}", "defaults.on_drop: expected source.catalog_key"),
        ("tables: [{match: '*.a', rename: 'x.{table}'}]", "tables[0].rename: expected {schema} and {table} in it"),
        ("include: []", "include: expected one or more names, all different"),
        ("include: 'a.*'", "include: expected a list of patterns"),
        ("rules: all", "rules: expected one of first, merge"),
    ],
)
def test_a_conflict_is_refused_when_the_file_is_read(tmp_path: Path, more: str, where: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(SMALLEST + more, tmp_path / "shop.yaml")
    assert where in str(refused.value)


VALUES: dict[str, list[Any]] = {
    "mode": ["mirror", "history"],
    "key": [["a"], ["b"]],
    "columns": [{"x": "drop"}, {"x": "redact", "y": "drop"}, {"y": "keep"}],
    "cluster_by": [["a"], ["b"]],
    "partition_by": [["a"]],
    "on_schema_change": [{"add": "hold"}, {"add": "follow", "drop": "keep"}],
    "rename": ["s.{schema}_{table}", "t.{table}_{schema}"],
}

RULES = st.lists(
    st.fixed_dictionaries(
        {"match": st.sampled_from(["*", "a.*", "*.b", "a.b", "?.b", "a.?", "a.b*", "[a]*", "[ab].*"])},
        optional={name: st.sampled_from(values) for name, values in VALUES.items()},
    ),
    max_size=5,
)


@given(RULES, st.randoms(use_true_random=False))
def test_the_order_of_merged_rules_has_no_effect(rules: list[dict[str, Any]], chance: random.Random) -> None:
    names = [(schema, table) for schema in ("a", "b", "c") for table in ("a", "b", "bc")]
    others = chance.sample(rules, len(rules))
    found = [effective(order, names) for order in (rules, others)]
    assert found[0] == found[1]


def effective(rules: list[dict[str, Any]], names: list[tuple[str, str]]) -> list[TableRule] | None:
    """The rule of each table; None for a configuration that is refused."""
    with NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(SMALLEST + yaml.safe_dump({"rules": "merge", "tables": rules}))
        file.flush()
        try:
            config = load_config(file.name, environ={})
        except ConfigError:
            return None
    return [replace(config.rule_for(*name), match="*") for name in names]

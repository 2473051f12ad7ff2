"""A resumed batch must run under the configuration it began with."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pgoutput_etl.config.column_rules import ColumnAction, ColumnRule, Salt
from pgoutput_etl.config.rule_merge import Rules
from pgoutput_etl.config.rules import Mode, OnDrop, OnInvalidText, OnMissingRow, TableRule
from pgoutput_etl.config.settings import Config, Target
from pgoutput_etl.errors import RunError
from pgoutput_etl.schema.contract import OnChange, SchemaContract
from pgoutput_etl.targets.target_plan import refuse_other_settings, settings_of
from pgoutput_etl.transactions.origin_filter import Origins
from tests.support.nights import CONFIG

TABLES = [("public", "orders"), ("public", "log")]
HASHED = ColumnRule(ColumnAction.HASH, Salt(b"another salt than before"))
ORDERS = replace(CONFIG, tables=(TableRule("public.orders", key=("id",), columns={"note": "drop"}),))


EVERYTHING_KEPT = TableRule("*", mode=Mode.HISTORY)


def with_rule(rule: TableRule) -> Config:
    return replace(CONFIG, tables=(rule,))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(ORDERS, source=replace(CONFIG.source, origins=Origins(frozenset()))), "origins"),
        (replace(ORDERS, target=Target("elsewhere")), "target"),
        (replace(ORDERS, types={"public.posint": "int4"}), "types"),
        (with_rule(TableRule("public.orders", key=("number",), columns={"note": "drop"})), "tables, for public.orders"),
        (with_rule(TableRule("public.*", key=("id",), columns={"note": "drop"})), "tables, for public.log"),
        (with_rule(TableRule("public.orders", mode=Mode.HISTORY, key=("id",))), "tables, for public.orders"),
        (with_rule(replace(ORDERS.tables[0], on_invalid_text=OnInvalidText.KEEP)), "tables, for public.orders"),
        (CONFIG, "tables, for public.orders"),
        (replace(ORDERS, defaults=TableRule("*", mode=Mode.HISTORY)), "tables, for public.log"),
        (replace(ORDERS, rules=Rules.MERGE, tables=(*ORDERS.tables, EVERYTHING_KEPT)), "tables, for public.log"),
        (with_rule(replace(ORDERS.tables[0], column_rules={"note": HASHED})), "salts"),
    ],
)
def test_a_resumed_batch_refuses_a_changed_configuration(now: Config, said: str) -> None:
    expected = rf"batch 7 was begun under another configuration by a run that died: {said}\. .*Restore the former"
    with pytest.raises(RunError, match=expected):
        refuse_other_settings(settings_of(ORDERS), now, TABLES, 7)


@pytest.mark.parametrize(
    "now",
    [
        ORDERS,
        replace(ORDERS, merge=replace(CONFIG.merge, parallel_tables=1), spark={"spark.sql.shuffle.partitions": "2"}),
        replace(ORDERS, tables=(TableRule("public.log", skip=True), *ORDERS.tables)),
        replace(ORDERS, tables=(TableRule("public.orders", skip=True), *ORDERS.tables)),
        replace(ORDERS, tables=(*ORDERS.tables, TableRule("other.*", mode=Mode.APPEND))),
        replace(ORDERS, include=("public.orders",)),
    ],
)
def test_settings_that_affect_no_row_may_change(now: Config) -> None:
    refuse_other_settings(settings_of(ORDERS), now, TABLES, 7)


# By key of a rule: another value than that of a plain rule, and whether a batch may be finished with it.
OTHER_VALUES: dict[str, tuple[dict[str, Any], bool]] = {
    "match": ({"match": "public.[o]rders"}, True),
    "skip": ({"skip": True}, True),
    "mode": ({"mode": Mode.APPEND}, False),
    "key": ({"key": ("id",)}, False),
    "columns": ({"columns": {"note": "drop"}}, False),
    "rename": ({"match": "public.orders", "rename": "crm.orders"}, False),
    "into": ({"into": "crm.others"}, False),
    "tag": ({"tag": {"_pg_source": "b"}}, False),
    "cluster_by": ({"cluster_by": ("id",)}, True),
    "partition_by": ({"partition_by": ("id",)}, True),
    "properties": ({"properties": {"a.b": "c"}}, True),
    "comment": ({"comment": "Orders"}, True),
    "cdf": ({"cdf": True}, True),
    "on_schema_change": ({"on_schema_change": SchemaContract(add=OnChange.HOLD)}, False),
    "on_missing_row": ({"on_missing_row": OnMissingRow.HOLD}, True),
    "on_invalid_text": ({"on_invalid_text": OnInvalidText.KEEP}, False),
    "on_drop": ({"on_drop": OnDrop.ARCHIVE}, False),
}


@pytest.mark.parametrize("key", TableRule.key_fields())
def test_a_batch_is_finished_under_another_rule_only_if_its_rows_stay_the_same(key: str) -> None:
    shared: dict[str, Any] = {"into": "crm.orders", "tag": {"_pg_source": "a"}}
    plain = {"match": "public.orders*"} | (shared if key in shared else {})
    values, may_change = OTHER_VALUES[key]
    settings = settings_of(with_rule(TableRule(**plain)))
    now = with_rule(TableRule(**{**plain, **values}))
    if may_change:
        refuse_other_settings(settings, now, TABLES[:1], 7)
    else:
        with pytest.raises(RunError, match=r"another configuration .*: tables, for public\.orders\."):
            refuse_other_settings(settings, now, TABLES[:1], 7)


def test_a_batch_under_merged_rules_is_finished_under_rules_that_give_its_tables_the_same() -> None:
    mirrored = TableRule("public.orders", given=frozenset({"mode"}))  # which is the default, but not here
    begun = replace(CONFIG, rules=Rules.MERGE, defaults=EVERYTHING_KEPT, tables=(mirrored,), include=("public.*",))
    same = TableRule("public.[!o]*", mode=Mode.HISTORY)
    for now in (begun, replace(CONFIG, tables=(same,)), replace(begun, include=None)):
        refuse_other_settings(settings_of(begun), now, TABLES, 7)
        refuse_other_settings(settings_of(now), begun, TABLES, 7)
    with pytest.raises(RunError, match=r"tables, for public\.log"):
        refuse_other_settings(settings_of(begun), CONFIG, TABLES, 7)
    with pytest.raises(RunError, match=r"tables, for public\.orders"):
        refuse_other_settings(settings_of(begun), replace(CONFIG, defaults=EVERYTHING_KEPT), TABLES, 7)


def test_rules_of_older_ledgers_lack_keys_that_later_versions_added() -> None:
    settings = json.loads(settings_of(ORDERS))
    del settings["salts"]
    for name in ("defaults", "rules", "include"):
        del settings[name]
    for rule in settings["tables"]:
        del rule["given"]
        del rule["on_schema_change"], rule["on_invalid_text"], rule["on_drop"], rule["into"], rule["tag"]
    refuse_other_settings(json.dumps(settings), ORDERS, TABLES, 7)
    with pytest.raises(RunError, match=r"tables, for public\.orders"):
        refuse_other_settings(json.dumps(settings), CONFIG, TABLES, 7)

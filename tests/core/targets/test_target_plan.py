"""A resumed batch must run under the configuration it began with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgoutput_etl.config.rules import Mode, OnInvalidText, TableRule
from pgoutput_etl.config.settings import Config, Target
from pgoutput_etl.errors import RunError
from pgoutput_etl.targets.target_plan import refuse_other_settings, settings_of
from pgoutput_etl.transactions.origin_filter import Origins
from tests.support.nights import CONFIG

TABLES = [("public", "orders"), ("public", "log")]
ORDERS = replace(CONFIG, tables=(TableRule("public.orders", key=("id",), columns={"note": "drop"}),))


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
    ],
)
def test_settings_that_affect_no_row_may_change(now: Config) -> None:
    refuse_other_settings(settings_of(ORDERS), now, TABLES, 7)

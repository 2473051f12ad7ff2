"""The configuration that a batch is finished under."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgoutput_etl.config.settings import Config, Mode, TableRule, Target
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
        (CONFIG, "tables, for public.orders"),
    ],
)
def test_a_batch_is_finished_under_the_configuration_that_it_was_begun_with(now: Config, said: str) -> None:
    expected = (
        rf"batch 7 was begun by a run that died, under another configuration: {said}\. .*set the configuration back"
    )
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
def test_what_decides_no_row_may_change_and_a_table_may_be_skipped(now: Config) -> None:
    refuse_other_settings(settings_of(ORDERS), now, TABLES, 7)

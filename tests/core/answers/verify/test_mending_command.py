"""The command that mends tables in which verify has found differences."""

from __future__ import annotations

from dataclasses import replace

from pgoutput_etl.answers.verify.tables import mending_command
from pgoutput_etl.config.rules import Mode
from tests.core.targets.test_planner import CONFIG, state_of
from tests.support.small_archives import table

URL = "postgresql://db:5432/shop"
MIRROR = state_of(table(name="orders"))
HISTORY = replace(state_of(table(name="a,b", oid=2)), mode=Mode.HISTORY)


def test_a_server_repairs_what_it_can_and_then_replaces_the_rest() -> None:
    assert mending_command([], URL, CONFIG) is None
    for differing in ([MIRROR], [HISTORY, MIRROR]):
        command = mending_command(differing, f"jdbc:{URL}", CONFIG)
        assert command is not None
        assert command.endswith(f" snapshot --tables public.orders --server {URL} --repair")
    replaced = mending_command([HISTORY], URL, CONFIG)
    assert replaced is not None
    assert replaced.endswith(f" snapshot --tables 'public.a?b' --server {URL}")


def test_without_a_server_tables_are_rebuilt() -> None:
    command = mending_command([HISTORY, MIRROR], None, CONFIG)
    assert command is not None
    assert command.endswith(" backfill --tables 'public.a?b,public.orders'")

"""Lands histories of the model server as files and compares their replay with the truth."""

from __future__ import annotations

import random
from datetime import datetime
from itertools import count
from typing import Any

from pgoutput_etl.replay.mirror import Replay
from tests.core.transactions.test_assembly import through_the_night
from tests.support import encoder
from tests.support.model.catalog import INT4, INT4_ARRAY, INT8, TIMESTAMPTZ
from tests.support.model.history import History, Messages
from tests.support.model.server import OVERTAKEN
from tests.support.model.truth import Table
from tests.support.small_archives import copydata

EVER = 1 << 62


def landed(messages: Messages, chance: random.Random) -> bytes:
    """A landed file in a random framing."""
    if chance.random() < 0.5:
        return encoder.length_prefixed(map(encoder.encode, messages))
    return copydata(messages)


def replayed_nightly(history: History, chance: random.Random) -> Replay:
    """Replays the history over several nights, divided anywhere."""
    replay = Replay()
    numbers = count()
    for night in history.nights(chance):
        for file in night:
            replay.add_file(f"{next(numbers):03}", landed(file, chance))
        replay.assembly = through_the_night(replay.assembly)
    return replay


def assert_archived(history: History, replay: Replay, lsn: int = EVER) -> None:
    """Checks that the tables have the server's rows after the commit at this LSN, as far as the archive has them."""
    truth = history.archived_at(lsn)
    renamed: dict[str, dict[str, str]] = {}
    for table in truth.values():
        renamed.setdefault(f"{table.namespace}.{table.name}", {}).update(table.renamed)
    tables = replay.tables(declared=renamed, until=lsn)
    for table in truth.values():
        if not table.knowable:
            continue
        assert table.oid in tables, f"no table of OID {table.oid}"
        columns = [column.name for column in tables[table.oid].shape.columns if not column.retired]
        assert tuple(columns) == table.columns
        rows = sorted((tuple(row[name] for name in columns) for row in tables[table.oid].rows), key=repr)
        assert rows == loaded_rows(table), f"{table.namespace}.{table.name}, OID {table.oid}"


def assert_named(history: History, replay: Replay) -> None:
    """Checks that each name belongs to the table whose rows were committed last under it."""
    if all(table.unknowable != OVERTAKEN for table in history.archived_at(EVER).values()):
        assert replay.name_holders() == history.holders_at(EVER)


def assert_nothing_waits_for_what_came(history: History, replay: Replay) -> None:
    """Checks that no transaction stays open if its end is in the archive."""
    assert {outcome.xid for outcome in replay.assembly.open_outcomes()} <= history.unfinished


def loaded_rows(table: Table) -> list[tuple[Any, ...]]:
    """The rows as the Python values that Arrow returns."""
    loaded = (tuple(_loaded(text, oid) for text, oid in zip(row, table.types, strict=True)) for row in table.rows)
    return sorted(loaded, key=repr)


def _loaded(text: str | None, type_oid: int) -> Any:
    if text is None:
        return None
    if type_oid in (INT4, INT8):
        return int(text)
    if type_oid == INT4_ARRAY:
        return [None if part == "NULL" else int(part) for part in text[1:-1].split(",") if part]
    if type_oid == TIMESTAMPTZ:
        seconds, _, fraction = text.removesuffix("+00").partition(".")
        return datetime.fromisoformat(f"{seconds}.{fraction:0<6}+00:00")
    return text

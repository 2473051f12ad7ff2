"""Keys whose text depends on the server's catalog are named before they change."""

from __future__ import annotations

from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.targets.key_spelling import changeable_keys
from pgoutput_etl.targets.target_plan import TargetPlan
from tests.support.nights import Nights
from tests.support.small_archives import Change, copydata, insert, table, transaction

MOOD, MOODS, CITEXT, REGCLASS, INT4 = 90001, 90002, 90003, 2205, 23


def planned(*columns: tuple[str, int], key: str) -> TargetPlan:
    types: list[Change] = [Type(None, MOOD, "public", "mood"), Type(None, MOODS, "public", "_mood")]
    types.append(Type(None, CITEXT, "public", "citext"))
    row = insert(*("{}" if oid == MOODS else "1" for _, oid in columns))
    return Nights().night([copydata(transaction(1, 10, *types, table(*columns, key=[key]), row))])


def remarks(*columns: tuple[str, int], key: str) -> list[str]:
    return list(changeable_keys(task.shape for task in planned(*columns, key=key).tables.tasks))


def test_a_key_of_a_type_whose_text_depends_on_the_catalog() -> None:
    [line] = remarks(("m", MOOD), ("v", INT4), key="m")
    assert line.startswith("public.t has a key whose text depends on the server's catalog: m (public.mood). Once an")
    assert len(remarks(("m", MOODS), ("v", INT4), key="m")) == 1
    assert len(remarks(("c", REGCLASS), ("v", INT4), key="c")) == 1


def test_other_columns_and_types_of_extensions_are_no_danger() -> None:
    assert remarks(("v", INT4), ("m", MOOD), key="v") == []
    assert remarks(("c", CITEXT), ("v", INT4), key="c") == []

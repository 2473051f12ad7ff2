"""Tables with the columns of a masked one, under names that its rule does not match."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pgoutput_etl.masking.unmasked_copies import unmasked_copies
from pgoutput_etl.protocol.messages import Relation
from tests.support.protected_replay import as_sent, config_with
from tests.support.small_archives import copydata, insert, table, transaction

PERSON = "{match: public.person, columns: {email: redact}}"
COLUMNS = ("id", "email", "v")


def copies(folder: Path, rules: str, copy: Relation) -> tuple[str, ...]:
    row = insert(*("1" for _ in copy.columns), oid=2)
    messages = [
        *transaction(1, 10, table(*COLUMNS, oid=1, name="person"), insert("1", "a@b", "v", oid=1)),
        *transaction(2, 20, copy, row),
    ]
    replay = as_sent([copydata(messages)])
    return unmasked_copies(config_with(folder, rules), replay.assembly.relations, [2])


@pytest.mark.parametrize("name", ["person_new", "new_person", "person_2026"])
def test_a_copy_that_no_rule_masks_is_named(tmp_path: Path, name: str) -> None:
    [line] = copies(tmp_path, f"[{PERSON}]", table(*COLUMNS, oid=2, name=name))
    assert line.startswith(f"public.{name} has the columns of public.person, but email would be stored without a mask.")


def test_a_copy_with_more_columns_or_in_another_schema_is_named(tmp_path: Path) -> None:
    assert copies(tmp_path, f"[{PERSON}]", table(*COLUMNS, "w", oid=2, name="person_new"))
    assert copies(tmp_path, f"[{PERSON}]", replace(table(*COLUMNS, oid=2, name="person"), namespace="staging"))


@pytest.mark.parametrize(
    "rules",
    [
        "[{match: 'public.person*', columns: {email: redact}}]",
        f"[{PERSON}, {{match: public.person_new, columns: {{email: drop}}}}]",
        f"[{PERSON}, {{match: public.person_new, columns: {{email: added}}}}]",
        f"[{PERSON}, {{match: public.person_new, skip: true}}]",
        "[{match: public.person, skip: true, columns: {email: redact}}]",
        "[]",
    ],
)
def test_a_copy_with_a_rule_of_its_own_is_not_named(tmp_path: Path, rules: str) -> None:
    assert copies(tmp_path, rules, table(*COLUMNS, oid=2, name="person_new")) == ()


@pytest.mark.parametrize(
    "other",
    [
        table(*COLUMNS, oid=2, name="customer"),
        table("id", "email", oid=2, name="person_new"),
        table("id", ("email", 17), "v", oid=2, name="person_new"),
    ],
)
def test_another_table_is_not_named(tmp_path: Path, other: Relation) -> None:
    assert copies(tmp_path, f"[{PERSON}]", other) == ()

"""Impossible masks, and rules that miss one of a column's names, are refused before any row is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.protocol.messages import ReplicaIdentity
from tests.support.protected_replay import as_sent, config_with, protection_of
from tests.support.small_archives import Messages, T, copydata, insert, segment, table, transaction

INT4, INT8, TEXT, VARCHAR, NUMERIC = 23, 20, 25, 1043, 1700
FULL = ReplicaIdentity.FULL
HASH = "{hash: sha256}"


def protected(folder: Path, rules: str, *parts: Messages) -> MaskingPolicy:
    messages = [message for part in parts for message in part]
    policy = protection_of(config_with(folder, rules), as_sent([copydata(messages)]))
    assert policy is not None
    return policy


def refusal(folder: Path, rules: str, *parts: Messages) -> str:
    with pytest.raises(ConfigError) as refused:
        protected(folder, rules, *parts)
    return str(refused.value)


def versions(*columns: str | tuple[str, int]) -> Messages:
    """Table t of these columns, and a row under them."""
    return transaction(1, 1, table(*columns), insert(*("1" for _ in columns)))


def test_without_rules_nothing_is_masked(tmp_path: Path) -> None:
    config = config_with(tmp_path, "[{match: public.t, columns: {v: added}}]")
    assert protection_of(config, as_sent([copydata(versions("id", "v"))])) is None


def test_the_error_for_an_unknown_column_names_the_existing_ones(tmp_path: Path) -> None:
    error = refusal(tmp_path, "[{match: x.y}, {match: 'public.*', columns: {emial: drop}}]", versions("id", "email"))
    assert error == (
        "tables[1].columns.emial: no matching table in the archive has this column: public.t has id, email"
    )


def test_a_rule_for_a_table_that_is_not_in_the_archive_yet_is_allowed(tmp_path: Path) -> None:
    policy = protected(tmp_path, "[{match: public.later, columns: {x: drop}}]", versions("id", "v"))
    assert policy.masks_of(T) == {}


def test_one_table_of_a_pattern_must_have_the_column(tmp_path: Path) -> None:
    other = transaction(2, 2, table("id", "mail", oid=2, name="other"))
    policy = protected(tmp_path, "[{match: 'public.*', columns: {mail: drop}}]", versions("id", "v"), other)
    assert (policy.masks_of(T), policy.masks_of(2)) == ({}, {"mail": "drop"})


def test_masks_of_merged_rules_and_defaults_are_checked_in_their_place(tmp_path: Path) -> None:
    other = transaction(2, 2, table("id", "mail", oid=2, name="other"))
    rules = "[{match: public.t, columns: {v: keep, w: redact}}, {match: 'public.*', columns: {v: drop, mail: drop}}]"
    parts = (versions("id", "v", "w"), other)
    policy = protected(tmp_path, f"{rules}\nrules: merge\ndefaults: {{columns: {{w: drop}}}}", *parts)
    assert (policy.masks_of(T), policy.masks_of(2)) == ({"w": "redact: REDACTED"}, {"mail": "drop"})
    missing = "no matching table in the archive has this column"
    error = refusal(tmp_path, f"{rules}\nrules: merge\ndefaults: {{columns: {{x: drop}}}}", *parts)
    assert error.startswith(f"defaults.columns.x: {missing}")
    error = refusal(tmp_path, rules.replace("mail", "meil") + "\nrules: merge", *parts)
    assert error.startswith(f"tables[1].columns.meil: {missing}")


@pytest.mark.parametrize("use", ["drop", "redact", "{redact: x}"])
def test_a_column_of_the_key_can_only_be_hashed(use: str, tmp_path: Path) -> None:
    error = refusal(tmp_path, f"[{{match: public.t, columns: {{id: {use}}}}}]", versions("id", "v"))
    assert "'id' of public.t belongs to the key" in error
    assert protected(tmp_path, f"[{{match: public.t, columns: {{id: {HASH}}}}}]", versions("id", "v")).masks_of(T)


def test_without_a_key_any_column_can_be_dropped_but_not_all(tmp_path: Path) -> None:
    bag = transaction(1, 1, table("a", "b", identity=FULL))
    assert protected(tmp_path, "[{match: public.t, columns: {a: drop}}]", bag).masks_of(T) == {"a": "drop"}
    assert "drops all columns of public.t" in refusal(tmp_path, "[{match: public.t, columns: {a: drop, b: drop}}]", bag)


def test_a_renamed_table_needs_the_same_rules_under_both_names(tmp_path: Path) -> None:
    renamed = transaction(2, 2, table("id", "mail", name="customers"), insert("2", "x"))
    rules = "[{match: public.customers, columns: {mail: drop}}]"
    error = refusal(tmp_path, rules, versions("id", "mail"), renamed)
    assert "public.customers was public.t before" in error
    assert "'mail'" in error
    back = transaction(3, 3, table("id", "mail", name="t"))
    assert "public.t was public.customers before" in refusal(tmp_path, rules, versions("id", "mail"), renamed, back)
    both = f"[{rules[1:-1]}, {{match: public.t, columns: {{mail: drop}}}}]"
    assert protected(tmp_path, both, versions("id", "mail"), renamed).masks_of(T) == {"mail": "drop"}


def test_a_table_that_takes_another_s_name_has_its_own_columns(tmp_path: Path) -> None:
    """A new table is filled, and both tables are renamed."""
    swapped = transaction(
        2, 2, table("id", "mail", name="old"), table("id", "mail", "phone", oid=2, name="t"), insert("1", "", "", oid=2)
    )
    rules = "[{match: public.t, columns: {mail: drop, phone: drop}}, {match: public.old, columns: {mail: drop}}]"
    policy = protected(tmp_path, rules, versions("id", "mail"), swapped)
    assert (policy.masks_of(T), policy.masks_of(2)) == ({"mail": "drop"}, {"mail": "drop", "phone": "drop"})


@pytest.mark.parametrize("use", ["drop", "redact", HASH])
def test_a_masked_column_that_is_gone_may_be_a_new_one(use: str, tmp_path: Path) -> None:
    before, after = versions("id", "v", "mail"), versions("id", "v", "email")
    error = refusal(tmp_path, f"[{{match: public.t, columns: {{mail: {use}}}}}]", before, after)
    assert "public.t no longer has the masked column 'mail'" in error
    assert "Configure 'email' in `columns`" in error
    for declared in (use, "added"):
        rules = f"[{{match: public.t, columns: {{mail: {use}, email: {declared}}}}}]"
        assert "mail" in protected(tmp_path, rules, before, after).masks_of(T)


def test_a_masked_column_that_is_gone_without_a_new_one_is_dropped(tmp_path: Path) -> None:
    rules = "[{match: public.t, columns: {mail: drop}}]"
    assert protected(tmp_path, rules, versions("id", "mail", "v"), versions("id", "v")).masks_of(T) == {"mail": "drop"}


@pytest.mark.parametrize(
    ("columns", "error"), [("mail: added, email: drop", None), ("email: {hash: sha256}", "'mail'")]
)
def test_a_renamed_column_needs_the_same_rule_under_both_names(columns: str, error: str | None, tmp_path: Path) -> None:
    """The rename is certain because of the column's place, so clear values are stored."""
    rules = f"[{{match: public.t, columns: {{{columns}}}}}]"
    before, after = versions("id", "mail", "v"), versions("id", "email", "v")
    if error is None:
        assert protected(tmp_path, rules, before, after).masks_of(T) == {"email": "drop"}
    else:
        assert "column 'email' of public.t was called 'mail' before" in refusal(tmp_path, rules, before, after)


@pytest.mark.parametrize(
    ("old", "new", "is_alike"),
    [(INT4, INT8, True), (VARCHAR, TEXT, True), (INT4, TEXT, False), (NUMERIC, INT8, False), (TEXT, INT4, False)],
)
def test_a_hashed_column_whose_text_changes_holds_the_table(old: int, new: int, is_alike: bool, tmp_path: Path) -> None:
    before, after = versions("id", ("n", old)), versions("id", ("n", new))
    policy = protected(tmp_path, f"[{{match: public.t, columns: {{n: {HASH}}}}}]", before, after)
    assert (policy.reason_unmaskable(T) is None) == is_alike
    redacted = protected(tmp_path, "[{match: public.t, columns: {n: redact}}]", before, after)
    assert redacted.reason_unmaskable(T) is None


def test_a_table_that_only_a_streamed_transaction_describes_is_masked(tmp_path: Path) -> None:
    streamed = segment(2, table("id", "mail"), insert("1", "x"), first=True)
    assert protected(tmp_path, "[{match: public.t, columns: {mail: drop}}]", streamed).masks_of(T) == {"mail": "drop"}

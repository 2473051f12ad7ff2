"""Reasons keep their kind on their way: copied, pickled, in the ledger, in a worker's error, and in masked rows."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace

import pytest

from pgoutput_etl.errors import RowError, ServerTableError, TableError
from pgoutput_etl.ledger.tables import SCHEMAS, table_row, table_state
from pgoutput_etl.load.holding import table_fault
from pgoutput_etl.reasons import TORN, Reason, ReasonKind, kind_of, to_json, with_reason
from tests.core.targets.test_condition import state

HELD_BY_0_1_0 = "its columns changed, which on_schema_change holds: "


@pytest.mark.parametrize("kind", [None, *ReasonKind])
def test_a_reason_keeps_its_kind(kind: ReasonKind | None) -> None:
    reason = Reason('odd {"kind": text', kind)
    for copy in (deepcopy(reason), pickle.loads(pickle.dumps(reason)), Reason.from_json(to_json(reason))):
        assert (copy, kind_of(copy)) == (reason, kind)
    assert kind_of(TableError(reason, kind).reason) is kind
    stored = table_state(table_row(replace(state(), reason=reason)))
    assert (stored.reason, kind_of(stored.reason)) == (reason, kind)


def test_the_ledger_has_a_column_for_the_kind() -> None:
    row = table_row(replace(state(), reason=Reason("why", ReasonKind.ON_SERVER)))
    assert (row["reason"], row["reason_kind"]) == ("why", "on server")
    assert set(row) == {field.name for field in SCHEMAS["batches"].field("tables").type.value_type}
    assert "reason_kind" in SCHEMAS["quarantine"].names


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{HELD_BY_0_1_0}column added: w", ReasonKind.CONTRACT),
        (f"{HELD_BY_0_1_0}column retyped: v (text to int4)", ReasonKind.NEW_TYPE),
        (f"expected 5 bytes, found 4{TORN}", ReasonKind.TORN),
        ("transaction 7 is in quarantine: why", ReasonKind.TRANSACTION),
        ("its values in existing rows were never sent: no archive has them", None),
        ("a column name is empty", None),
    ],
)
def test_texts_that_0_1_0_stored_are_read(text: str, kind: ReasonKind | None) -> None:
    """What such a table or such bytes need is decided as before; only the command for it may be less specific."""
    old = with_reason({"reason": text})
    assert (old["reason"], kind_of(old["reason"])) == (text, kind)
    assert kind_of(with_reason({"reason": text, "reason_kind": "skipped"})["reason"]) is ReasonKind.SKIPPED
    assert kind_of(Reason.from_json(text)) is kind, "a step in Delta's history"


@pytest.mark.parametrize("kind", [None, ReasonKind.NOT_UTF8, ReasonKind.UNDECLARED, ReasonKind.ON_SERVER])
def test_a_worker_sends_the_kind_as_the_error_class(kind: ReasonKind | None) -> None:
    error = RowError.of_kind("file 7, offset 12: why", kind)
    name = f"{type(error).__module__}.{type(error).__name__}"
    for found in (error, RuntimeError(f"Traceback:\n{name}: {error}\n")):
        fault = table_fault(found, "/landing/{}".format)
        assert fault == "/landing/7: offset 12: why"
        assert kind_of(fault) is kind


@pytest.mark.parametrize("error", [TableError("why"), ServerTableError("why")])
def test_a_worker_sends_the_kind_of_a_reason_without_a_file(error: TableError) -> None:
    fault = table_fault(RuntimeError(f"Traceback:\npgoutput_etl.errors.{type(error).__name__}: why\n"), str)
    assert (fault, kind_of(fault)) == ("why", error.kind)
    assert kind_of(ServerTableError("why").reason) is ReasonKind.ON_SERVER

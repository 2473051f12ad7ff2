"""Stored values follow a renamed label and other attributes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import TypeForm
from pgoutput_etl.schema.type_forms import reformed

LABELS = TypeForm(labels=((1, "red"), (2, "blue"))), TypeForm(labels=((1, "blue"), (2, "red"), (3, "green")))


def test_labels_may_be_exchanged() -> None:
    values = pa.array(["red", None, "blue", "red"])
    assert reformed(values, *LABELS).to_pylist() == ["blue", None, "red", "blue"]


def test_labels_in_arrays() -> None:
    values = pa.array([["red", None], None, [], ["blue"]], pa.list_(pa.string()))
    assert reformed(values, *LABELS).to_pylist() == [["blue", None], None, [], ["red"]]
    assert reformed(values[1:], *LABELS).to_pylist() == [None, [], ["red"]]


def test_attributes_are_added_and_dropped() -> None:
    values = pa.array(['(1,"a, ""b""",)', None, "(,,3)"])
    forms = TypeForm(attributes=(1, 2, 3)), TypeForm(attributes=(2, 3, 4))
    assert reformed(values, *forms).to_pylist() == ['("a, ""b""",,)', None, "(,3,)"]


def test_a_text_that_is_no_row_stays() -> None:
    assert reformed(pa.array(["x"]), TypeForm(attributes=(1,)), TypeForm(attributes=(1, 2))).to_pylist() == ["x"]


def test_other_stored_forms_hold_the_table() -> None:
    with pytest.raises(TableError, match="can't follow"):
        reformed(pa.array([1]), *LABELS)

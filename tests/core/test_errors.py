"""Errors of libraries without their texts, and this package's errors in the texts of Spark's."""

from __future__ import annotations

import pytest

from pgoutput_etl.errors import ArchiveError, brief, during, own_lines, step_of
from pgoutput_etl.load.holding import table_fault

CANARY = "s3cr3t-canary-41"


class PythonException(Exception):  # noqa: N818 # as in pyspark
    """A text as Spark has it, of a worker's traceback."""


def of_worker(last_lines: str) -> PythonException:
    return PythonException(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        f'  File "job.py", line 29, in convert\n    int(text)\n{last_lines}\n SQLSTATE: 38000'
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError(CANARY), "ValueError"),
        (PermissionError(13, "Permission denied", CANARY), "Permission denied"),
        (OSError(CANARY), "OSError"),
        (of_worker(f"ValueError: invalid literal: '{CANARY}'"), "PythonException, by ValueError in a Python worker"),
        (
            of_worker(f"pyarrow.lib.ArrowInvalid: {CANARY}"),
            "PythonException, by pyarrow.lib.ArrowInvalid in a Python worker",
        ),
        (
            of_worker(f"ValueError: of two lines\n{CANARY.replace('-', '_')}: x"),
            "PythonException, by ValueError in a Python worker",
        ),
        (of_worker("secret.Error: x"), "PythonException"),
    ],
)
def test_a_library_error_has_its_class_alone(error: Exception, expected: str) -> None:
    import pyarrow.lib  # noqa: F401 # its exceptions are known then

    assert brief(error) == expected


def test_errors_of_this_package_in_a_worker_are_found_and_values_are_not_taken_for_them() -> None:
    own = of_worker("pgoutput_etl.errors.ArchiveError: file 7, offset 12: expected a number")
    assert own_lines(own) == ["ArchiveError: file 7, offset 12: expected a number"]
    assert table_fault(own, lambda number: f"/landing/{number}") == "/landing/7: offset 12: expected a number"
    assert own_lines(ArchiveError("file 7, offset 12: no\nmore")) == ["ArchiveError: file 7, offset 12: no"]
    cast = ValueError(f"[CAST_INVALID_INPUT] The value 'TableError: {CANARY}' of the type STRING cannot be cast")
    assert own_lines(cast) == []
    assert table_fault(cast, str) is None


def test_an_error_has_the_innermost_step() -> None:
    with pytest.raises(ValueError, match="a") as raised, during("checking all"), during("writing public.t"):
        raise ValueError("a")
    assert step_of(raised.value) == "writing public.t"
    assert step_of(ValueError()) is None

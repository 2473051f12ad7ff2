"""What a server has answered, as it is kept."""

from __future__ import annotations

from traceback import format_exception

import pytest

from pgoutput_etl.answers.verify.key_ranges import Digest, Ranges
from pgoutput_etl.answers.verify.report import VerifiedTable
from pgoutput_etl.answers.verify.server_answer import AskedTable, ServerAnswer
from pgoutput_etl.errors import RunError

ASKED = AskedTable(
    "public",
    "or.ders",
    ("id", "v"),
    Ranges((0,), (5, 9), only=(0, 2)),
    {0: Digest(2, 3, 4), 2: Digest(1)},
    {2: [["9", None]], 1: []},
)
HASHED = AskedTable("public", "lines", ("k",), Ranges((0,), (1 << 31,), is_hashed=True), {}, {})
EQUAL = VerifiedTable("public", "equal", rows=3, other_rows=3, by_value=("f",), not_compared={"g": "why"})


def test_an_answer_is_read_as_it_was_written() -> None:
    answer = ServerAnswer(
        0x16_0000_0001, 7, 0x15, "2026-03-01T02:00:00+00:00", "postgresql://db/shop", (ASKED, HASHED), (EQUAL,), ()
    )
    assert ServerAnswer.of(answer.to_json()) == answer
    assert answer.asked.tables == ("public.lines", "public.or.ders")


def test_an_answer_is_open_as_long_as_a_table_may_differ() -> None:
    done = ServerAnswer(1, 1, 1, "", "", (), (EQUAL,), ())
    missing = ServerAnswer(1, 1, 1, "", "", (), (), (("public", "new"),))
    assert (done.is_open, missing.is_open, ServerAnswer.of(missing.to_json()) == missing) == (False, True, True)
    assert missing.asked.tables == ("public.new",)


def test_another_versions_answer_is_refused() -> None:
    with pytest.raises(RunError, match=r"another version of this package \(7\)"):
        ServerAnswer.of('{"version": 7}')


def test_the_error_about_other_content_has_none_of_it() -> None:
    """The file has values of rows."""
    text = ServerAnswer(1, 1, 1, "", "", (ASKED,), (), ()).to_json().replace('"9"', "90417")
    with pytest.raises(RunError, match="run it again") as error:
        ServerAnswer.of(text)
    assert "90417" not in "".join(format_exception(error.value))

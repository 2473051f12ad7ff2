"""PostgreSQL's CSV, field by field."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.postgres.copy_format import (
    binary_spans,
    csv_tuples,
    header,
    record_spans,
    records,
    text_spans,
    tuple_of,
)
from pgoutput_etl.protocol.framing import COPY_SIGNATURE


def read(data: bytes) -> list[list[str | None]]:
    return list(records(data, "rows.csv"))


def test_null_differs_from_empty_text() -> None:
    assert read(b'id,"a ""b""",c\n1,,""\n2,"x,\ny","say ""yes"""\n') == [
        ["id", 'a "b"', "c"],
        ["1", None, ""],
        ["2", "x,\ny", 'say "yes"'],
    ]


def sent(rows: list[list[str | None]]) -> bytes:
    """As the server sends rows for queries.copied_rows (CopyAttributeOutCSV in copyto.c)."""

    def field(text: str | None) -> str:
        if text is None:
            return ""
        return text if text and not set(text) & set(',"\r\n') else '"' + text.replace('"', '""') + '"'

    return "".join(",".join(("", *map(field, row))) + "\n" for row in rows).encode()


FIELDS = st.none() | st.text(
    st.characters(codec="utf-8", exclude_characters="\0") | st.sampled_from('",\r\n\\ \ufeffN')
)


@given(st.integers(0, 4).flatmap(lambda n: st.lists(st.lists(FIELDS, min_size=n, max_size=n), min_size=1)))
@example([["\ufeffa"], ["\\."], [""], [None]])
def test_arrow_reads_what_a_server_sends(rows: list[list[str | None]]) -> None:
    tuples = [tuple_of([None if text is None else text.encode() for text in row], b"t") for row in rows]
    assert csv_tuples(sent(rows), len(rows[0])).to_pylist() == tuples


def test_where_rows_begin_and_end() -> None:
    csv = 'id,v\n1,"ä\n"\n2,x'.encode()
    assert [csv[begin:end] for begin, end, _ in record_spans(csv, "a")] == [b"id,v\n", '1,"ä\n"\n'.encode(), b"2,x"]
    text = b"1\ta\n2\t\\N\n\\.\n"
    assert [text[begin:end] for begin, end, _ in text_spans(text, "a", 2)] == [b"1\ta\n", b"2\t\\N\n"]
    rows = [b"\0\1\0\0\0\1a", b"\0\1\xff\xff\xff\xff"]
    binary = COPY_SIGNATURE + bytes(8) + b"".join(rows) + b"\xff\xff"
    assert [binary[begin:end] for begin, end, _ in binary_spans(binary, "a", 1)] == rows


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_any_newline_ends_a_record_and_quoted_ones_stay(newline: bytes) -> None:
    data = newline.join([b"a,b", b'1,"x\r\ny"', b"2,"])
    assert read(data) == read(data + newline) == [["a", "b"], ["1", "x\r\ny"], ["2", None]]


def test_the_only_column_may_be_null() -> None:
    assert read(b"a\n\n1\n\n") == [["a"], [None], ["1"], [None]]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a,b\n1\n", "record 1: expected 2 fields"),
        (b'a,b\n1,"SECRET\n', "record 1, character 6: expected a field"),
        (b'a,b\n1,"SECRET"x\n', "record 1, character 6: expected a field"),
        (b'a,b\n1,SEC"RET\n', "record 1, character 6: expected a field"),
        (b"a\n\xff\n", "offset 2: expected UTF-8"),
    ],
)
def test_other_csv_is_refused_without_quoting_it(data: bytes, said: str) -> None:
    with pytest.raises(ArchiveError, match=f"rows.csv, {said}") as error:
        read(data)
    assert "SECRET" not in str(error.value)


def test_the_header() -> None:
    assert header(b'id,"a, b"\n1,"x', "rows.csv") == ["id", "a, b"]
    with pytest.raises(ArchiveError, match="expected a header"):
        header(b"", "rows.csv")


def _field(text: str | None) -> str:
    if text is None:
        return ""
    plain = text and not any(c in text for c in ',"\r\n')
    return text if plain else '"' + text.replace('"', '""') + '"'


@given(st.lists(st.tuples(*[st.none() | st.text(alphabet='ab",\r\n ž', max_size=4)] * 3), min_size=1, max_size=4))
def test_written_rows_are_read_back(rows: list[tuple[str | None, ...]]) -> None:
    written = "".join(",".join(map(_field, row)) + "\n" for row in rows)
    assert read(written.encode()) == [list(row) for row in rows]

"""Names that a user may have given to a table, on their way into expressions and paths."""

from __future__ import annotations

from fnmatch import fnmatchcase
from io import StringIO
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from pgoutput_etl.console import ProgressPrinter, print_error
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.identifiers import (
    MAX_SEGMENT,
    bytes_of,
    is_chosen,
    is_utf8_name,
    is_within,
    name_of,
    path_segment,
    pattern_of,
    printable,
    quoted,
)
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.work.files.report import RunSummary, print_summary

names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=63)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a", "`a`"), ("a.b", "`a.b`"), ("sp ace", "`sp ace`"), ("`", "````"), ("a`) or 1", "`a``) or 1`")],
)
def test_a_quoted_name_is_one_name(name: str, expected: str) -> None:
    assert quoted(name) == expected


@given(names)
def test_nothing_in_a_name_ends_the_quotes(name: str) -> None:
    inside = quoted(name)[1:-1]
    assert "`" not in inside.replace("``", "")
    assert inside.replace("``", "`") == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders", "orders"),
        ("Weird Name", "Weird Name"),
        ("v1.2-b_$", "v1.2-b_$"),
        ("_delta_log", "%5Fdelta_log"),
        ("_pgoutput_etl", "%5Fpgoutput_etl"),
        (".hidden", "%2Ehidden"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("/root", "%2Froot"),
        ("a/b", "a%2Fb"),
        ("a\\b", "a%5Cb"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        ("id=1", "id%3D1"),
        ("ends.", "ends%2E"),
        ("ends ", "ends%20"),
        ("{a,b}*?[c]", "%7Ba%2Cb%7D%2A%3F%5Bc%5D"),
        ("žluť", "%C5%BElu%C5%A5"),
        ("\U0001f418", "%F0%9F%90%98"),
        ("line\nbreak", "line%0Abreak"),
    ],
)
def test_a_name_as_a_folder(name: str, expected: str) -> None:
    assert path_segment(name) == expected


@given(names)
@example("..")
@example("_x")
@example("%41")
def test_every_name_has_a_folder_of_its_own_and_is_told_by_it(name: str) -> None:
    segment = path_segment(name)
    assert unquote(segment, errors="strict") == name
    assert segment.isascii()
    assert segment.isprintable()
    assert segment[0] not in "_."
    assert not set(segment) & set('/\\:*?"<>|{}[]#')
    assert PurePosixPath("root", segment).parts == ("root", segment)


sent_names = st.binary(max_size=63).filter(lambda sent: b"\0" not in sent)


@given(sent_names, sent_names)
@example(b"caf\xe9", b"caf\\xe9")
@example(b"caf\xe9", "café".encode())
@example(b"caf\xe9", b"cafe9")
@example(b"\xed\xb3\xa9", b"\xe9")
def test_names_of_any_bytes_differ_wherever_their_bytes_do(sent: bytes, other: bytes) -> None:
    name = name_of(sent)
    assert bytes_of(name) == sent
    assert (name == name_of(other)) == (sent == other)
    assert is_utf8_name(name) == (name.encode() == sent)
    assert not set(printable(name)) & {"\0", "\x1b"}


def test_a_byte_of_a_name_is_shown_as_its_digits_and_matched_by_any_character() -> None:
    name = name_of(b"public.caf\xe9,1")
    assert printable(name) == "public.caf\\xe9,1"
    assert fnmatchcase(name, pattern_of(name))
    assert "\0" not in pattern_of(name)
    assert is_utf8_name(name_of("žluť".encode()))


CONTROLS = "\x1b]8;;http://evil\x07 \x1b[2J \r \n \b \x9b31m \u202e \u2066 \u200b \ud800 \x7f"


def test_nothing_printed_is_a_command_to_the_terminal() -> None:
    """Escape sequences, hyperlinks (OSC 8), carriage returns, C1 controls, overrides of direction."""
    shown = printable(f"before {CONTROLS} žluť \U0001f418")
    assert shown.startswith("before \\x1b]8;;http://evil\\x07 ")
    assert shown.endswith(" žluť \U0001f418")
    assert shown.isprintable()
    assert "\\u202e" in shown


def test_an_error_is_printed_without_commands_and_without_lines_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(ArchiveError(f"in/{CONTROLS}\nConfigError: forged\r\x1b[1A"))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("PGO-2000: ArchiveError: in/\\x1b]8")
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])


def test_progress_is_printed_without_commands(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressPrinter()(f"writing {CONTROLS}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()


def test_the_summary_is_printed_without_commands() -> None:
    hostile = TableSummary(CONTROLS, CONTROLS, "/x", 1, 1, notes=(CONTROLS,))
    held = TableSummary(CONTROLS, CONTROLS, "", -1, held=CONTROLS)
    console = Console(file=StringIO(), width=120)
    print_summary(RunSummary("shop", 1, 1, 1, 1, tables=(hostile, held), skipped=(CONTROLS,)), console)
    written = console.file
    assert isinstance(written, StringIO)
    assert all(line.isprintable() for line in written.getvalue().splitlines())
    assert "31m" in written.getvalue()


@pytest.mark.parametrize(
    ("path", "folder", "expected"),
    [
        ("s3a://a/b", "s3a://a/b/", True),
        ("./w/x/y", "w/x", True),
        ("w/./x//y", "./w/x/", True),
        ("file:/w/x", "/w", True),
        ("file:///w/x", "/w", True),
        ("w/xy", "w/x", False),
        ("w", "w/x", False),
        ("./w", ".", True),
        ("../w", ".", False),
        ("/w", "./", False),
        ("s3a://a/b", "s3a://b/b", False),
    ],
)
def test_which_folder_is_in_which(path: str, folder: str, expected: bool) -> None:
    assert is_within(path, folder) is expected


@pytest.mark.parametrize("name", ["e\u0301", "\u00e9", "E\u0301", "x" * 63, "ž" * 31])
def test_names_that_look_the_same_have_folders_of_their_own(name: str) -> None:
    """NFC and NFD are two names to PostgreSQL, and two ASCII folders."""
    others = {path_segment(other) for other in ("e\u0301", "\u00e9", "E\u0301", "x" * 63, "ž" * 31) if other != name}
    assert path_segment(name) not in others
    assert len(path_segment(name)) <= MAX_SEGMENT


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["a.*"], ["a.log_1", "a.t"]),
        (["a.*", "!a.log_*"], ["a.t"]),
        (["!*.log_*", "a.*", "b.log_2"], ["a.t"]),
        (["!a.*"], ["!a.t", "b.log_2"]),
        ([pattern_of("!a.t")], ["!a.t"]),
    ],
)
def test_patterns_choose_tables_and_leave_tables_out(patterns: list[str], chosen: list[str]) -> None:
    names = ["!a.t", "a.log_1", "a.t", "b.log_2"]
    assert [name for name in names if is_chosen(name, patterns)] == chosen


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_pattern_chooses_its_name(name: str) -> None:
    assert is_chosen(name, [pattern_of(name)])

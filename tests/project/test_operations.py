"""docs/errors.md explains every error of the code, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pgoutput_etl import errors
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.load.summary import TableSummary, unchanged_lines
from pgoutput_etl.reasons import Reason, ReasonKind
from tools.error_sites import CLASSES, GAP, Site, sites

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
_LEAST_LETTERS = 8  # a shorter pattern would fit many errors


def patterns() -> Iterator[tuple[str, str]]:
    """The class, which is the heading, and the message of each entry."""
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for section in sections:
        kind = section.split("\n", 1)[0].strip()
        for cell in re.findall(r"^\| (`.*?`) \| ", section, re.MULTILINE):
            yield from ((kind, text) for text in re.findall(r"`([^`]+)`", cell))


PATTERNS = list(patterns())


def fits(pattern: str, text: str) -> bool:
    """`…` stands for anything. The text may begin with a location."""
    literal = ".*".join(re.escape(part) for part in pattern.split(GAP))
    return re.search(f"(^|: ){literal}$", text, re.DOTALL) is not None


def entry_of(site: Site) -> str | None:
    return next((text for kind, text in PATTERNS if kind == site.kind and fits(text, site.text)), None)


def test_every_error_of_the_code_has_an_entry() -> None:
    unexplained = [str(site) for site in sites() if entry_of(site) is None]
    assert unexplained == [], "\n".join(["docs/errors.md needs an entry for", *unexplained])


def test_every_entry_explains_an_error_of_the_code() -> None:
    stale = [p for p in PATTERNS if not any(site.kind == p[0] and fits(p[1], site.text) for site in sites())]
    assert stale == [], "docs/errors.md explains errors that the code no longer has"


def test_no_entry_fits_anything() -> None:
    assert [text for _, text in PATTERNS if len(re.findall("[A-Za-z]", text)) < _LEAST_LETTERS] == []


def test_every_error_class_for_users_has_a_section() -> None:
    classes = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.PgoutputEtlError) and kind is not errors.PgoutputEtlError
        # Those of workers: users see them as the reason for which a table is held.
        if not issubclass(kind, (errors.RowError, errors.ServerTableError))
    }
    assert classes == set(CLASSES)
    assert {kind for kind, _ in PATTERNS} == classes


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('raise RunError("run it again")', "run it again"),
        ('raise RunError(f"batch {number} is there" " already")', "batch … is there already"),
        ('raise RunError(_why(1))\ndef _why(n):\n    return f"because of {n} others"', "because of … others"),
        ('WHAT = "Take it out"\nraise RunError(f"{path}: {WHAT}")', "…: Take it out"),
        ('def f():\n    text = "one thing" if x else "another thing"\n    raise RunError(text)', "another thing"),
    ],
)
def test_an_errors_text_is_found_in_any_expression(tmp_path: Path, code: str, expected: str) -> None:
    module = tmp_path / "pgoutput_etl" / "new.py"
    module.parent.mkdir()
    module.write_text(code)
    new_sites = sites(tmp_path)
    assert expected in [site.text for site in new_sites]
    assert entry_of(new_sites[0]) is None


def test_the_search_finds_errors_of_every_class() -> None:
    """Detects a search that finds nothing."""
    kinds: Mapping[str, int] = {kind: sum(site.kind == kind for site in sites()) for kind in CLASSES}
    assert min(kinds.values()) >= 1
    assert sum(kinds.values()) > 120


# The numbers of all versions, which no later one may change or give to another error.
CODES = {
    1000: "CONFIG",
    1100: "CONFIG_FILE",
    1200: "OPTIONS",
    2000: "ARCHIVE",
    2010: "UNREADABLE_FILE",
    2020: "CHANGED_FILE",
    2030: "SPECIAL_FILE",
    2040: "ROW",
    2100: "WIRE",
    2200: "FRAMING",
    2210: "EXPANSION",
    2300: "SEQUENCE",
    2310: "COMMIT_ORDER",
    3000: "TABLE",
    3010: "CONTRACT",
    3020: "NEW_TYPE",
    3030: "SKIPPED",
    3040: "NOT_UTF8",
    3050: "UNDECLARED",
    3060: "ON_SERVER",
    3070: "COLUMN_NAME",
    3080: "UNDECIDED",
    4000: "RUN",
    4100: "SPARK_START",
    4200: "SERVER",
    5000: "TRY_LATER",
    5100: "ANOTHER_RUN",
    9000: "UNEXPECTED",
    9010: "DISK_FULL",
    9020: "JAVA_MEMORY",
    9030: "JAVA_ENDED",
    9040: "WORKER_ENDED",
    9050: "EXECUTOR_LOST",
}


def test_each_code_keeps_its_number_and_has_a_row_with_an_anchor() -> None:
    assert {code.value: code.name for code in ErrorCode} == CODES
    rows = re.findall(r"^\| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    shown = [row for row in rows if "PGO-" in row]
    assert shown == [f'<a id="{str(code).lower()}"></a>{code}' for code in ErrorCode]


def test_every_class_and_kind_has_a_code_of_its_own() -> None:
    classes = [getattr(errors, name) for name in CLASSES]
    assert len({kind.code for kind in classes}) == len(classes)
    assert ErrorCode.UNEXPECTED not in {kind.code for kind in classes}
    # Those of bytes in quarantine, which are no errors of a table.
    assert set(ReasonKind) - set(errors.CODE_OF_KIND) == {ReasonKind.TORN, ReasonKind.TRANSACTION}
    coded = {kind: errors.TableError("x", kind).code for kind in errors.CODE_OF_KIND}
    assert coded == errors.CODE_OF_KIND
    assert {row_error.code for row_error in errors.RowError.classes.values() if row_error.kind is not None} == {
        errors.CODE_OF_KIND[row_error.kind] for row_error in errors.RowError.classes.values() if row_error.kind
    }


def test_a_reason_in_a_summary_has_the_code_of_its_kind() -> None:
    texts = Reason("not UTF-8", ReasonKind.NOT_UTF8), Reason("other"), "text"
    held = [TableSummary("public", "t", "", 0, held=text) for text in texts]
    codes = ("PGO-3040: not UTF-8", "other", "text")
    assert unchanged_lines(held, ()) == [f"Not changed: public.t: {text}" for text in codes]


def test_where_an_error_is_raised_may_decide_its_code() -> None:
    def code(error: errors.PgoutputEtlError) -> ErrorCode:
        outer, inner = (errors.coded(code, errors.RunError) for code in (ErrorCode.SPARK_START, ErrorCode.SERVER))
        with pytest.raises(errors.PgoutputEtlError), outer, inner:
            raise error
        return error.code

    assert code(errors.RunError("x")) is ErrorCode.SERVER
    assert code(errors.AnotherRunError("x")) is ErrorCode.ANOTHER_RUN
    assert code(errors.ConfigError("x")) is ErrorCode.CONFIG

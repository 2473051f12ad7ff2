"""The runbook in docs/operations.md explains every error that the code can make, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pgoutput_etl import errors
from tools.error_sites import CLASSES, GAP, Site, sites

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
_LEAST_LETTERS = 8  # a pattern that fits anything would explain nothing


def patterns() -> Iterator[tuple[str, str]]:
    """Class and message of each first cell below the class's heading."""
    sections = re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for section in sections:
        kind = section.split("\n", 1)[0].strip()
        for cell in re.findall(r"^\| (`.*?`) \| ", section, re.MULTILINE):
            yield from ((kind, text) for text in re.findall(r"`([^`]+)`", cell))


PATTERNS = list(patterns())
SITES = sites()


def fits(pattern: str, text: str) -> bool:
    """What differs, in both, is `…`; a place may stand before it."""
    literal = ".*".join(re.escape(part) for part in pattern.split(GAP))
    return re.search(f"(^|: ){literal}$", text, re.DOTALL) is not None


def entry_of(site: Site) -> str | None:
    return next((text for kind, text in PATTERNS if kind == site.kind and fits(text, site.text)), None)


def test_every_error_of_the_code_has_an_entry() -> None:
    unexplained = [str(site) for site in SITES if entry_of(site) is None]
    assert unexplained == [], "\n".join(["docs/operations.md needs an entry for", *unexplained])


def test_every_entry_is_of_an_error_of_the_code() -> None:
    stale = [p for p in PATTERNS if not any(site.kind == p[0] and fits(p[1], site.text) for site in SITES)]
    assert stale == [], "docs/operations.md explains what the code doesn't say any more"


def test_no_entry_fits_anything() -> None:
    assert [text for _, text in PATTERNS if len(re.findall("[A-Za-z]", text)) < _LEAST_LETTERS] == []


def test_every_class_that_reaches_a_user_has_a_section() -> None:
    made = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.PgoutputEtlError) and kind is not errors.PgoutputEtlError
    }
    assert made == set(CLASSES)
    assert {kind for kind, _ in PATTERNS} == made


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
def test_a_new_error_is_found_wherever_its_text_comes_from(tmp_path: Path, code: str, expected: str) -> None:
    module = tmp_path / "pgoutput_etl" / "new.py"
    module.parent.mkdir()
    module.write_text(code)
    found = sites(tmp_path)
    assert expected in [site.text for site in found]
    assert entry_of(found[0]) is None


def test_what_the_code_says_counts_of_sites() -> None:
    """The search itself must not fall silent."""
    kinds: Mapping[str, int] = {kind: sum(site.kind == kind for site in SITES) for kind in CLASSES}
    assert min(kinds.values()) >= 2
    assert sum(kinds.values()) > 120

"""The pictures of the status page and the undo page."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tools.screenshots import PAGES, PICTURES, trimmed

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_the_docs_has_the_picture(page: str) -> None:
    pages = [path.name for path in DOCS.glob("*.md") if f"](img/{page}.png)" in path.read_text(encoding="utf-8")]
    assert len(pages) == 1
    with Image.open(PICTURES / f"{page}.png") as picture:
        assert picture.width == 1000
        assert trimmed(picture.convert("RGB")).size == picture.size


def test_a_picture_ends_below_its_content() -> None:
    picture = Image.new("RGB", (10, 200), "white")
    picture.putpixel((3, 50), (0, 0, 0))
    assert trimmed(picture).size == (10, 51 + 24)
    assert trimmed(Image.new("RGB", (10, 20), "white")).size == (10, 20)

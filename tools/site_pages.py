"""What mkdocs is told of pages that lie outside of docs/, or are made: the README as the front page, and others.

Links are as they are right in the repository; here they are put right for the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
# A file of the repository, and the page that it becomes.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
DECISIONS = "adr/index.md"
# Where the site has other files of the repository that pages link to.
FILES = PurePosixPath("files")
_LINK = re.compile(r"(\]\()([^)#:]+)(#[^)]*)?(\))")


def on_files(files: Files, config: Any) -> Files:
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=for_site(text, PurePosixPath(source))))
    files.append(File.generated(config, DECISIONS, content=decisions()))
    for path in sorted(linked_files()):
        files.append(File.generated(config, str(FILES / path), abs_src_path=str(ROOT / path)))
    return files


def linked_files() -> set[PurePosixPath]:
    """What lies outside of docs/ and is no page."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PAGES)]
    found: set[PurePosixPath] = set()
    for page in pages:
        of = PurePosixPath(page.relative_to(ROOT).as_posix())
        for _, target, _, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            path = _normal(of.parent / target)
            if not path.is_relative_to("docs") and str(path) not in PAGES and (ROOT / path).is_file():
                found.add(path)
    return found


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in {*PAGES.values(), DECISIONS}:
        return markdown
    return for_site(markdown, PurePosixPath("docs", page.file.src_uri))


def for_site(text: str, of: PurePosixPath) -> str:
    """The text of a file of the repository, its links as the site has them."""
    here = PurePosixPath(PAGES.get(str(of), str(of.relative_to("docs")) if of.is_relative_to("docs") else ""))
    return _LINK.sub(lambda found: found[1] + _linked(found[2], of, here) + (found[3] or "") + found[4], text)


def _linked(target: str, of: PurePosixPath, here: PurePosixPath) -> str:
    path = _normal(of.parent / target)
    if str(path) in PAGES:
        page = PurePosixPath(PAGES[str(path)])
    elif str(path) == "docs/adr":
        page = PurePosixPath(DECISIONS)
    elif path.is_relative_to("docs"):
        page = path.relative_to("docs")
    elif (ROOT / path).is_file():
        page = FILES / path
    else:
        return target
    return "../" * (len(here.parts) - 1) + str(page)


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def decisions() -> str:
    """The list of docs/adr, by their titles."""
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    titles = [(path.name, path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")) for path in pages]
    listed = "\n".join(f"- [{title}]({name})" for name, title in titles)
    return f"# Decisions\n\nHalf a page each: what was decided, why, and what was rejected.\n\n{listed}\n"

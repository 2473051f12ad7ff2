"""mkdocs hooks that add pages from outside docs/ and generated pages to the site: the README as front page, and others.

Links in the files are valid in the repository; here they are rewritten for the site.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
# Files of the repository, and the pages they become.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
}
DECISIONS = "adr/index.md"
# The site's folder for other files of the repository that pages link to.
FILES = PurePosixPath("files")
LINK = re.compile(r"(\]\()([^)#:]+)(#[^)]*)?(\))")


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
    """Linked files outside docs/ that are not pages."""
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PAGES)]
    files: set[PurePosixPath] = set()
    for page in pages:
        source = PurePosixPath(page.relative_to(ROOT).as_posix())
        for _, target, _, _ in LINK.findall(page.read_text(encoding="utf-8")):
            path = _normal(source.parent / target)
            if not path.is_relative_to("docs") and str(path) not in PAGES and (ROOT / path).is_file():
                files.add(path)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in {*PAGES.values(), DECISIONS}:
        return markdown
    return for_site(markdown, PurePosixPath("docs", page.file.src_uri))


def for_site(text: str, source: PurePosixPath) -> str:
    """The text of a file of the repository, with its links rewritten for the site."""
    in_docs = str(source.relative_to("docs")) if source.is_relative_to("docs") else ""
    page = PurePosixPath(PAGES.get(str(source), in_docs))
    return LINK.sub(lambda match: match[1] + _site_link(match[2], source, page) + (match[3] or "") + match[4], text)


def _site_link(target: str, source: PurePosixPath, page: PurePosixPath) -> str:
    path = _normal(source.parent / target)
    if str(path) in PAGES:
        linked = PurePosixPath(PAGES[str(path)])
    elif str(path) == "docs/adr":
        linked = PurePosixPath(DECISIONS)
    elif path.is_relative_to("docs"):
        linked = path.relative_to("docs")
    elif (ROOT / path).is_file():
        linked = FILES / path
    else:
        return target
    return "../" * (len(page.parts) - 1) + str(linked)


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return PurePosixPath(*parts)


def decisions() -> str:
    """The list of the pages in docs/adr, by title."""
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    titles = [(path.name, path.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")) for path in pages]
    listed = "\n".join(f"- [{title}]({name})" for name, title in titles)
    return f"# Decisions\n\nHalf a page each: the decision, its reasons, and the rejected alternatives.\n\n{listed}\n"

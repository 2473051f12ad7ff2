"""Builds the sdist and the wheel, installs each into an empty environment, and runs the demo from it.

    make dist                                      # build/dist/*.tar.gz and *.whl
    make dist REPOSITORY=https://example.org/etl   # to publish: with its addresses, and links that hold on PyPI

Each environment has the pinned versions and nothing from this clone, and the demo runs in a separate folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from pgoutput_etl import __version__
from tools.matrix import build, copy_repository, environment, own_environ
from tools.site_pages import LINK

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "dist"
_PICTURES = (".svg", ".png")


def add_addresses(source: Path, repository: str) -> None:
    """Names the repository in the packages' metadata, and makes README's links absolute, as PyPI shows only README.
    repository: its URL, with files of a tag below /blob/TAG/ and /raw/TAG/, as on GitHub and GitLab."""
    files = f"{repository}/{{}}/v{__version__}"

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[2].endswith(_PICTURES) else "blob"
        return f"{link[1]}{files.format(kind)}/{link[2]}{link[3] or ''}{link[4]}"

    readme, project = source / "README.md", source / "pyproject.toml"
    readme.write_text(LINK.sub(absolute, readme.read_text(encoding="utf-8")), encoding="utf-8")
    pages = files.format("blob")
    addresses = {
        "Homepage": repository,
        "Documentation": f"{pages}/docs/getting-started.md",
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    urls = "".join(f'{name} = "{url}"\n' for name, url in addresses.items())
    settings = project.read_text(encoding="utf-8")
    project.write_text(settings.replace("[project.scripts]", f"[project.urls]\n{urls}\n[project.scripts]"), "utf-8")


def runs_the_demo(package: Path, folder: Path) -> bool:
    """True if the demo succeeds, after installing the package into an environment in this folder."""
    python = environment(folder / "env", (ROOT / "requirements.lock").read_text(encoding="utf-8"), package)
    demo = subprocess.run([python.with_name("pgoutput-etl"), "demo"], cwd=folder, env=own_environ(), check=False)
    return demo.returncode == 0


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    source = FOLDER / "source"
    source.mkdir(parents=True)
    copy_repository(source)
    repository = sys.argv[1].rstrip("/") if len(sys.argv) > 1 else None
    if repository is not None:
        add_addresses(source, repository)
    packages = build(source, FOLDER)
    shutil.rmtree(source)
    passed = True
    for package in packages:
        folder = FOLDER / f"from_{package.suffix.removeprefix('.')}"
        folder.mkdir()
        has_passed = runs_the_demo(package, folder)
        print(f"{package.relative_to(ROOT)}: {'the demo ran' if has_passed else 'the demo FAILED'}", flush=True)
        passed = passed and has_passed
        shutil.rmtree(folder)
    if repository is None:
        print("Not to publish: without REPOSITORY, they name no address, and README's links don't hold on PyPI.")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

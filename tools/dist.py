"""Builds the sdist and the wheel, installs each into an empty environment, and runs the demo from it.

    make dist                            # build/dist/*.tar.gz and *.whl, to publish

Each environment has the pinned versions and nothing from this clone, and the demo runs in a separate folder.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.matrix import build, copy_repository, environment, own_environ

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "dist"


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
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

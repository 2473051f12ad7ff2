"""Takes the pictures of the demo's status page and undo page with Chromium (Debian's package `chromium`).

python -m tools.screenshots
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image, ImageChops

from pgoutput_etl.jobs.demo import BAD_DEPLOY, DemoRequest

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "img"
_CONFIG = f"{DemoRequest().out}/shop.yaml"
PAGES: Mapping[str, tuple[str, ...]] = {
    "status": ("status", "--config", _CONFIG, "--html", "status.html"),
    "undo": ("undo", "--config", _CONFIG, "--xid", str(BAD_DEPLOY), "--out", "undo.sql"),
}
_WIDTH, _HEIGHT, _MARGIN = 1000, 3000, 24  # pixels


def trimmed(picture: Image.Image) -> Image.Image:
    """Without the rows below the page's content, which have a single color."""
    background = Image.new(picture.mode, picture.size, picture.getpixel((0, picture.height - 1)))
    box = ImageChops.difference(picture, background).getbbox()
    bottom = picture.height if box is None else min(box[3] + _MARGIN, picture.height)
    return picture.crop((0, 0, picture.width, bottom))


def take(page: Path, picture: Path) -> None:
    if not page.is_file():  # Chromium shows folders, too
        raise SystemExit(f"{page}: no such page")
    subprocess.run(
        [
            *("chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--window-size={_WIDTH},{_HEIGHT}", f"--screenshot={picture}", page.as_uri()),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    with Image.open(picture) as taken:
        content = trimmed(taken.convert("RGB"))
    content.save(picture, optimize=True)


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        for command in (("demo",), *PAGES.values()):
            program = [sys.executable, "-c", "from pgoutput_etl.cli import main; raise SystemExit(main())", *command]
            subprocess.run(program, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
        for page in PAGES:
            take(folder / f"{page}.html", PICTURES / f"{page}.png")


if __name__ == "__main__":
    main()

"""Files that are replaced at once, because somebody may be reading them."""

from __future__ import annotations

from pathlib import Path


def replace_file(path: str, text: str) -> None:
    """Raises OSError."""
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(target)

"""Replaces a local file atomically, because another program may be reading it."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pgoutput_etl.file_access import PRIVATE, PUBLIC, Access


def replace_file(path: Path, content: str | bytes, access: Access = PRIVATE) -> None:
    """content: text is written as UTF-8. access: an existing file keeps its permissions if the access is PUBLIC. Raises
    OSError, and then leaves nothing behind. The temporary name begins with a dot, so that programs that read whole
    folders ignore it."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        access.give(Path(name))
        if access is PUBLIC and path.exists():
            Path(name).chmod(path.stat().st_mode & 0o777)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise

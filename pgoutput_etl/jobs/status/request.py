"""The options of the status job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pgoutput_etl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """max_age: of the last applied commit, before the tables count as stale. html: the file to write the page to.
    schemas: the folder to write every version of the tables' columns to."""

    max_age: timedelta | None = None
    html: str | None = None
    schemas: str | None = None

    def check(self) -> None:
        """Raises ConfigError if the page or the schemas can't be written."""
        if self.html is not None and (Path(self.html).is_dir() or not Path(self.html).absolute().parent.is_dir()):
            raise ConfigError("--html: expected a file in an existing folder")
        if self.schemas is not None and (
            Path(self.schemas).is_file() or not Path(self.schemas).absolute().parent.is_dir()
        ):
            raise ConfigError("--schemas: expected a folder in an existing folder")

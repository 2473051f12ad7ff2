"""The options of the status job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pgoutput_etl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """max_age: the age of the last applied commit from which the tables count as stale. html, dbt: the files to write
    the page and dbt's sources to. schemas: the folder to write every version of the tables' columns to."""

    max_age: timedelta | None = None
    html: str | None = None
    schemas: str | None = None
    dbt: str | None = None

    def check(self) -> None:
        """Raises ConfigError if a file or folder can't be written."""
        for option, path in (("--html", self.html), ("--dbt", self.dbt)):
            if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
                raise ConfigError(f"{option}: expected a file in an existing folder")
        schemas = None if self.schemas is None else Path(self.schemas).absolute()
        if schemas is not None and (schemas.is_file() or not schemas.parent.is_dir()):
            raise ConfigError("--schemas: expected a folder in an existing folder")

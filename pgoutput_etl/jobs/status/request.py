"""The options of the status job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pgoutput_etl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """max_age: of the last applied commit, before the tables count as stale. html, dbt: the files to write the page
    and dbt's sources to."""

    max_age: timedelta | None = None
    html: str | None = None
    dbt: str | None = None

    def check(self) -> None:
        """Raises ConfigError if a file can't be written."""
        for option, path in (("--html", self.html), ("--dbt", self.dbt)):
            if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
                raise ConfigError(f"{option}: expected a file in an existing folder")

"""The options of the status job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import FILE, FOLDER, Option, Value
from pgoutput_etl.timestamps import parse_duration


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """html, dbt, schemas: paths to write to: two files and a folder."""

    max_age: Annotated[
        timedelta | None,
        Option("exit with 3 if the last commit is older: 90m, 36h or 2d", Value("AGE", parse_duration)),
    ] = None
    html: Annotated[str | None, Option("also write a page with the status and charts of the last 30 days", FILE)] = None
    schemas: Annotated[
        str | None, Option("also write every version of the tables' columns as JSON Schema and Avro", FOLDER)
    ] = None
    dbt: Annotated[
        str | None, Option("also write the tables as dbt sources, with --max-age as their freshness", FILE)
    ] = None

    @property
    def writes_files(self) -> bool:
        return any(path is not None for path in (self.html, self.schemas, self.dbt))

    def check(self) -> None:
        """Raises ConfigError if a file or folder can't be written."""
        for option, path in (("--html", self.html), ("--dbt", self.dbt)):
            if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
                raise ConfigError(f"{option}: expected a file in an existing folder")
        schemas = None if self.schemas is None else Path(self.schemas).absolute()
        if schemas is not None and (schemas.is_file() or not schemas.parent.is_dir()):
            raise ConfigError("--schemas: expected a folder in an existing folder")

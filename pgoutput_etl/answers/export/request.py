"""The options of the export job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pgoutput_etl.answers.moment.request import AsOf
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import FOLDER, PATTERNS, Option, one_of
from pgoutput_etl.places import Place

SCRIPT = "load.sql"  # loads the tables with psql


class ExportFormat(Enum):
    COPY = "copy"
    SQL = "sql"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """moment: None for the last applied commit."""

    tables: Annotated[tuple[str, ...], Option("tables to write, as schema.table", PATTERNS)]
    into: Annotated[str, Option("a new folder", FOLDER)]
    moment: AsOf = None
    format: Annotated[
        ExportFormat, Option("copy: COPY's text (default); sql: INSERT statements", one_of(ExportFormat))
    ] = ExportFormat.COPY

    def check(self) -> None:
        if Place.parse(self.into).is_in_catalog:
            raise ConfigError("--into: expected a folder")

"""The options of the export job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.answers.moment.request import Moment
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.places import Place

SCRIPT = "load.sql"  # loads the tables with psql


class ExportFormat(Enum):
    COPY = "copy"
    SQL = "sql"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """tables: shell patterns of schema.table. moment: None for the last applied commit. into: a new folder."""

    tables: tuple[str, ...]
    into: str
    moment: Moment | None = None
    format: ExportFormat = ExportFormat.COPY

    def check(self) -> None:
        if Place.parse(self.into).is_in_catalog:
            raise ConfigError("--into: expected a folder")

"""The options of the export job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pgoutput_etl.answers.moment.request import NamedAsOf
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import FOLDER, PATTERNS, Former, Option, one_of, takes_former_names
from pgoutput_etl.places import Place

SCRIPT = "load.sql"  # loads the tables with psql


class ExportFormat(Enum):
    COPY = "copy"
    SQL = "sql"


@takes_former_names
@dataclass(frozen=True, slots=True)
class ExportRequest:
    """at: None means the last applied commit."""

    tables: Annotated[tuple[str, ...], Option("tables to write, as schema.table", PATTERNS)]
    out: Annotated[str, Option("a new folder", FOLDER), Former("--into", "into")]
    at: NamedAsOf = None
    format: Annotated[
        ExportFormat, Option("copy: COPY's text (default); sql: INSERT statements", one_of(ExportFormat))
    ] = ExportFormat.COPY

    def check(self) -> None:
        if Place.parse(self.out).is_in_catalog:
            raise ConfigError("--out: expected a folder")

"""A server's answer: digests of the tables where Delta differed at the time, and some of their rows.

Kept as one JSON file below state.root until an apply has passed the LSN. It contains values of rows, but not those of
masked columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.key_ranges import Digest, Ranges
from pgoutput_etl.answers.verify.report import AskedMoment, VerifiedTable
from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import path_segment, printable
from pgoutput_etl.spark.shared_file import SharedFile, shared_file
from pgoutput_etl.types.canonical_text import Text

_FOLDER, _VERSION = "verify", 2

Rows = Mapping[int, list[list[Text]]]  # texts of the columns, by range


@dataclass(frozen=True, slots=True)
class AskedTable:
    """columns: names. digests: the server's, by range; empty ranges are left out. rows: of the ranges that were
    fetched."""

    schema: str
    table: str
    columns: tuple[str, ...]
    ranges: Ranges
    digests: Mapping[int, Digest]
    rows: Rows

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """lsn: the server's snapshot had all transactions that committed before it. batch: the last one at the time.
    through: the LSN at which tables are known to be equal if no difference is found. at: ISO 8601. against: its URL,
    for the report. tables: those where Delta differed as of its last commit; decided: those that were equal or can't be
    compared. missing: schemas and names of published tables with rows that Delta didn't have."""

    lsn: int
    batch: int
    through: int
    at: str
    against: str
    tables: tuple[AskedTable, ...]
    decided: tuple[VerifiedTable, ...]
    missing: tuple[tuple[str, str], ...]

    @property
    def is_open(self) -> bool:
        return bool(self.tables or self.missing)

    @property
    def asked(self) -> AskedMoment:
        names = (*(table.full_name for table in self.tables), *map(".".join, self.missing))
        return AskedMoment(self.lsn, self.at, tuple(sorted(map(printable, names))))

    def to_json(self) -> str:
        return json.dumps({"version": _VERSION, **asdict(self)})

    @staticmethod
    def of(text: str) -> ServerAnswer:
        """Raises RunError for an answer by another version of this package."""
        fields = json.loads(text)
        version = fields.pop("version")
        try:
            answer = _ANSWER.validate_python(fields) if version == _VERSION else None
        except ValidationError:  # its text has values of rows
            answer = None
        if answer is None:
            raise RunError(f"verify --begin was run by another version of this package ({version}): run it again")
        return answer


_ANSWER = TypeAdapter(ServerAnswer)


def answer_file(spark: SparkSession, config: Config) -> SharedFile:
    """The file of the answer. Raises ConfigError for a Spark Connect client."""
    folder = f"{config.state.root.rstrip('/')}/{_FOLDER}"
    file = shared_file(spark, folder, f"{path_segment(config.source.name)}.json", config.state.access())
    if file is None:
        raise ConfigError(
            "--server: what the server was asked is kept in a file, which a client of Spark Connect can't write: put "
            "state.root in a volume, or run this job in Spark's own process"
        )
    return file


def kept_answer(file: SharedFile) -> ServerAnswer | None:
    text = file.read()
    return None if text is None else ServerAnswer.of(text)

"""The codes of errors, each with a row in docs/errors.md. A number never changes its meaning, and is not reused after
removal."""

from __future__ import annotations

from enum import Enum, unique


@unique
class ErrorCode(Enum):
    """The first digit is the class of the error."""

    CONFIG = 1000
    CONFIG_FILE = 1100
    OPTIONS = 1200

    ARCHIVE = 2000
    UNREADABLE_FILE = 2010
    CHANGED_FILE = 2020
    SPECIAL_FILE = 2030
    ROW = 2040
    WIRE = 2100
    FRAMING = 2200
    EXPANSION = 2210
    SEQUENCE = 2300
    COMMIT_ORDER = 2310

    TABLE = 3000
    CONTRACT = 3010
    NEW_TYPE = 3020
    SKIPPED = 3030
    NOT_UTF8 = 3040
    UNDECLARED = 3050
    ON_SERVER = 3060
    COLUMN_NAME = 3070
    UNDECIDED = 3080

    RUN = 4000
    SPARK_START = 4100
    SERVER = 4200

    TRY_LATER = 5000
    ANOTHER_RUN = 5100

    UNEXPECTED = 9000
    DISK_FULL = 9010
    JAVA_MEMORY = 9020
    JAVA_ENDED = 9030
    WORKER_ENDED = 9040
    EXECUTOR_LOST = 9050

    def __str__(self) -> str:
        return f"PGO-{self.value}"

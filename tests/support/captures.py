"""The archives in tests/data: copies of real servers' output, with the rows those servers held.

PGOUTPUT_ETL_CAPTURES names a folder with more of the same kind, laid out the same way, for `make soak`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"
CAPTURES = Path(os.environ.get("PGOUTPUT_ETL_CAPTURES", DATA))

# Values that an archive doesn't contain, as listed in the captures' notes.
NEVER_SENT = {"public.part"}
NEVER_SENT_VALUES = {"public.evo": ("d", "id", "3")}  # a column, of the row with this key: a default of ADD COLUMN
NEVER_SENT_ON_10 = frozenset({"c_f4", "c_f8"})  # that walsender sends fewer digits than the truth was taken with


@dataclass(frozen=True, slots=True)
class Table:
    schema: str
    name: str
    truth: Path

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


def truth_tables(folder: Path) -> list[Table]:
    """The tables of a truth folder whose rows an archive has completely."""
    tables = []
    for path in sorted(folder.glob("*.csv")):
        schema, _, name = path.stem.partition(".")
        if f"{schema}.{name}" not in NEVER_SENT:
            tables.append(Table(schema, name, path))
    return tables


def ignored_columns(server: str) -> frozenset[str]:
    return NEVER_SENT_ON_10 if server == "pg10" else frozenset()


def files_of(slot: Path) -> list[Path]:
    """A slot's files in their order."""
    return sorted(path for path in slot.iterdir() if path.is_file())

"""The reference for tables as of a commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pgoutput_etl.replay.mirror import Replay


@dataclass(slots=True)
class CutReplay(Replay):
    """With the commits through `last`."""

    last: int = 0

    @classmethod
    def of(cls, files: Iterable[bytes], last: int) -> CutReplay:
        replay = cls(last=last)
        for number, content in enumerate(files):
            replay.add_file(f"{number}", content)
        return replay

    def committed(self) -> Iterator[dict[str, Any]]:
        return (row for row in Replay.committed(self) if row["commit_lsn"] <= self.last)

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """By schema.table, of the tables that have their names at the end."""
        tables = self.tables()
        return {".".join(name): tables[oid].rows for name, oid in self.name_holders().items() if oid in tables}


def assert_equal_rows(have: Iterable[Mapping[str, Any]], want: Iterable[Mapping[str, Any]], where: str) -> None:
    missing, extra = Counter(map(_comparable, want)), Counter(map(_comparable, have))
    assert extra == missing, f"{where}: too many {list(extra - missing)[:3]}, missing {list(missing - extra)[:3]}"


def _comparable(row: Mapping[str, Any]) -> tuple[str, ...]:
    odd = row["_pg_unrepresentable"]
    plain = {**row, "_pg_unrepresentable": sorted(dict(odd).items()) if odd else None}
    return tuple(f"{name}={value!r}" for name, value in sorted(plain.items()))

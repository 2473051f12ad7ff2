"""Archives from which the changes of chosen rows are erased."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pgoutput_etl.changes.row_search import Condition, FoundChange, RowKey, RowSearch
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.landing.erasure import erase
from pgoutput_etl.protocol.framing import detect
from pgoutput_etl.replay.mirror import Replay, fragment_outcomes


@dataclass(frozen=True)
class Landed:
    files: list[bytes]
    key: tuple[str, ...] | None = None

    def replayed(self) -> Replay:
        replay = Replay()
        for number, data in enumerate(self.files):
            replay.add_file(f"{number:03}", data)
        return replay

    @cached_property
    def _replay(self) -> Replay:
        return self.replayed()

    def search(self, oid: int, *conditions: Condition) -> RowSearch:
        return RowSearch(self._replay.assembly.relations.versions(oid), conditions, self.key)

    def changes(self, oid: int) -> list[dict[str, Any]]:
        """Of a table, with the scopes of their transactions, as rows_with_status has them."""
        outcomes = fragment_outcomes(self._replay.assembly)
        rows = [r for r in self._replay._messages if r["tag"] in "IUD" and r["relation"] == oid]
        scopes = ((row, outcomes.get((row["file"], row["unit"]))) for row in rows)
        return [{**row, "scope": None if outcome is None else outcome.scope} for row, outcome in scopes]

    def found(self, oid: int, *conditions: Condition) -> list[FoundChange]:
        """The changes to erase."""
        search = self.search(oid, *conditions)
        return [found for row in self.changes(oid) if (found := search.find(row)).is_chosen]

    def all_found(self, oid: int, first: Condition) -> tuple[tuple[Condition, ...], list[FoundChange]]:
        """Repeats a search with the other keys that it finds, until none is left over. Returns the last conditions."""
        conditions: tuple[Condition, ...] = (first,)
        while True:
            found = self.found(oid, *conditions)
            others = {key for change in found for key in change.other_keys}
            if not others:
                return conditions, found
            conditions = (*conditions, *map(dict, sorted(others)))

    def without(self, changes: Iterable[FoundChange]) -> Landed:
        by_file: dict[int, dict[int, bool]] = {}
        for change in changes:
            by_file.setdefault(change.file, {})[change.offset] = change.in_stream
        files = [
            erase(data, detect(data), by_file[number]).data if number in by_file else data
            for number, data in enumerate(self.files)
        ]
        return Landed(files)


def keys_of(search: RowSearch, changes: Iterable[Mapping[str, Any]]) -> list[RowKey]:
    """All keys in changes. search: without conditions. Raises ArchiveError for a change without a description."""
    keys = set[RowKey]()
    for row in changes:
        number = search.versions.at((row["file"], row["ordinal"]), row["scope"])
        if number is None:
            raise ArchiveError(f"offset {row['offset']}: no Relation message")
        for name, is_key in (("old", row["old_kind"] == "K"), ("new", False)):
            keys.update(search.other_keys(search._image(row[name], number, is_key) or {}))
    return sorted(keys)

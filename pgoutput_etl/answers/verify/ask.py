"""Queries a server in use for digests of its tables, in a snapshot whose LSN is known.

Delta is behind that snapshot, so a table that differs isn't wrong yet. Its digests and the rows of differing ranges are
kept, and are compared again once Delta has reached the LSN (settle.py). Differing ranges are split further to fetch few
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from operator import attrgetter
from typing import TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.answers.verify.delta_side import ColumnChoice, DeltaSide, compared_table, faulty_table, why_not_read
from pgoutput_etl.answers.verify.key_ranges import (
    GREATEST,
    HASH_BITS,
    ROWS_IN_RANGE,
    Digest,
    Ranges,
    differing_ranges,
    merge_digests,
    plan_ranges,
)
from pgoutput_etl.answers.verify.report import VerifiedTable
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.row_text import digests_of, text_names
from pgoutput_etl.answers.verify.server_answer import AskedTable, ServerAnswer
from pgoutput_etl.answers.verify.server_digest import ServerTable
from pgoutput_etl.answers.verify.sides import OtherColumns
from pgoutput_etl.console import Progress
from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import is_chosen
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.load.holding import FAULTS
from pgoutput_etl.postgres.catalog import QUERY, CatalogTable, read_catalog
from pgoutput_etl.postgres.live_server import ServerMoment, ask_server, mark, server_errors, server_moment, shown
from pgoutput_etl.postgres.queries import rewritten
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types import UserTypes
from pgoutput_etl.types.canonical_text import ComparedColumn, Text

R = TypeVar("R")

_ROWS_IN_PART = 500

_MOST_PARTS = 4_096  # most ranges of one table

_MOST_DIVISIONS = 4

_MOST_ROWS = 10_000  # rows kept per table

_MOST_TEXT = 1 << 26  # characters kept per table

_ROWS_AT_ONCE = 1_000


_REWRITTEN = (
    "rewritten (TRUNCATE, ALTER TABLE, VACUUM FULL) while the server was asked, whose snapshot doesn't have its rows"
)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table on the server, as published. connections: number that may read it at the same time."""

    table: CatalogTable
    connections: int

    @property
    def columns(self) -> OtherColumns:
        return OtherColumns([column.name for column in self.table.relation.columns], "the server doesn't publish it")

    def digests(
        self,
        moment: ServerMoment,
        columns: Sequence[ComparedColumn],
        ranges: Ranges,
        numbers: Sequence[int] | None = None,
    ) -> dict[int, Digest]:
        """numbers: the ranges to read; None for all that are compared."""
        table, wanted = self._query(columns, ranges), ranges.numbers if numbers is None else numbers
        if not wanted:
            return {}
        # Hashed ranges require a scan of the whole table, so one connection reads all of them.
        count = 1 if ranges.is_hashed else min(self.connections, len(wanted))
        shares = [wanted[i::count] for i in range(count)]
        with ThreadPoolExecutor(count) as pool:
            answers = pool.map(lambda share: moment.ask(table.digests(ranges, share)), shares)
            return merge_digests(row for answer in answers for row in answer)

    def rows(
        self, moment: ServerMoment, columns: Sequence[ComparedColumn], ranges: Ranges, numbers: Sequence[int]
    ) -> dict[int, list[list[Text]]]:
        found: dict[int, list[list[Text]]] = {number: [] for number in numbers}
        for row in moment.ask(self._query(columns, ranges).rows(ranges, numbers)):
            found[row["range"]].append([row[name] for name in text_names(len(columns))])
        return found

    def has_rows(self, moment: ServerMoment) -> bool:
        [row] = moment.ask(self._query((), Ranges((), ())).any_row())
        return bool(row["has_rows"])

    def _query(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> ServerTable:
        relation, names = self.table.relation, tuple(column.name for column in columns)
        nullable = any(names[i] not in self.table.not_null for i in ranges.columns)
        return ServerTable(relation.namespace, relation.name, names, nullable, self.table.is_root, self.table.filter)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A table whose rows in Delta have been read. digests: of Delta's rows. least, greatest: their places."""

    side: DeltaSide
    other: PublishedTable
    choice: ColumnChoice
    ranges: Ranges
    digests: Mapping[int, Digest]
    least: int
    greatest: int

    @classmethod
    def of(cls, side: DeltaSide, other: PublishedTable, choice: ColumnChoice, changed: DataFrame | None) -> _Comparison:
        """Splits the table into ranges and reads Delta's digests. changed: `one`, the keys of the rows to compare
        (adjacent rows are compared with them); None for the whole table."""
        columns, key = choice.columns, choice.key
        size, (least, greatest) = side.key_size(columns, key)
        rows_in_range = ROWS_IN_RANGE if changed is None else _ROWS_IN_PART
        ranges = plan_ranges(columns, key, size, (least, greatest), rows_in_range)
        if ranges.is_hashed:
            least, greatest = 0, (1 << HASH_BITS) - 1
        elif greatest is not None and greatest < GREATEST:  # rows that Delta doesn't have yet are often beyond it
            ranges = replace(ranges, starts=(*ranges.starts, greatest + 1))
        if changed is not None and key:
            texts = {name: F.lit(None).cast("string") for name in text_names(len(columns))}
            texts |= {f"t{i}": F.col("one")[n] for n, i in enumerate(key)}
            keys = changed.select(*(text.alias(name) for name, text in texts.items()))
            ranges = replace(ranges, only=tuple(sorted(digests_of(keys, len(columns), ranges))))
            side = side.within(columns, ranges)
        digests = side.digests(columns, ranges)
        return cls(side, other, choice, ranges, digests, least or 0, greatest or 0)

    def answer(self, moment: ServerMoment) -> AskedTable | VerifiedTable:
        columns, ranges, ours = self.choice.columns, self.ranges, self.digests
        theirs = self.other.digests(moment, columns, ranges)
        for _ in range(_MOST_DIVISIONS):
            parts = self._parts(ranges, ours, theirs)
            if not parts:
                break
            ranges, kept = ranges.divided(parts, self.least, self.greatest)
            new = sorted({*ranges.numbers}.difference(kept.values()))
            theirs = {kept[number]: digest for number, digest in theirs.items() if number in kept}
            theirs |= self.other.digests(moment, columns, ranges, new)
            ours = self.side.digests(columns, ranges)
        numbers, state = differing_ranges(ours, theirs), self.side.state
        if not numbers:
            return compared_table(state.schema, state.table, self.choice, self.ranges, ours, theirs)
        rows = self._rows(moment, ranges, {number: theirs.get(number, Digest()).rows for number in numbers})
        return AskedTable(state.schema, state.table, tuple(c.name for c in columns), ranges, theirs, rows)

    def _parts(self, ranges: Ranges, ours: Mapping[int, Digest], theirs: Mapping[int, Digest]) -> dict[int, int]:
        """The number of parts to split ranges into, by range."""
        sizes = {
            n: max(ours.get(n, Digest()).rows, theirs.get(n, Digest()).rows) for n in differing_ranges(ours, theirs)
        }
        bounds = ranges.bounds
        wide = [
            number
            for number, size in sizes.items()
            if size > _ROWS_IN_PART and max(bounds[number][0], self.least) < min(bounds[number][1], self.greatest)
        ]
        most = (_MOST_PARTS - ranges.count) // len(wide) + 1 if wide else 0
        parts = {number: min(-(-sizes[number] // _ROWS_IN_PART), most) for number in wide}
        return {number: count for number, count in parts.items() if count > 1}

    def _rows(self, moment: ServerMoment, ranges: Ranges, sizes: Mapping[int, int]) -> dict[int, list[list[Text]]]:
        """The server's rows of as many ranges as may be kept, smallest ranges first. sizes: numbers of its rows, by
        range."""
        kept: dict[int, list[list[Text]]] = {}
        rows = texts = 0
        for numbers in _shares(sizes):
            rows += sum(sizes[number] for number in numbers)
            if rows > _MOST_ROWS:
                break
            found = self.other.rows(moment, self.choice.columns, ranges, numbers)
            texts += sum(len(text or "") for own in found.values() for row in own for text in row)
            if texts > _MOST_TEXT:
                break
            kept |= found
        return kept


def _shares(sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """Groups of ranges whose rows are fetched together."""
    share, rows = list[int](), 0
    for number in sorted(sizes, key=lambda n: (sizes[n], n)):
        if share and rows + sizes[number] > _ROWS_AT_ONCE:
            yield share
            share, rows = [], 0
        share.append(number)
        rows += sizes[number]
    if share:
        yield share


@dataclass(frozen=True, slots=True)
class Asking:
    """archive: through the last batch. states: of the chosen tables after it. changed: by OID, the keys that have
    changed since a table was found equal, or None without any; a table without an entry is compared as a whole."""

    archive: DeltaArchive
    request: VerifyRequest
    states: Sequence[TableState]
    changed: Mapping[int, DataFrame | None]
    progress: Progress

    def run(self) -> ServerAnswer:
        url, is_live, last = self.request.url, self.request.is_live, self.archive.last
        catalog, threads = self._catalog(url), self.archive.config.merge.parallel_tables
        pool = TablePool.of(self.archive.spark, threads, "reading", self.progress)
        read, name = partial(self._read, catalog, self.archive.user_types), attrgetter("full_name")
        sides = pool.map(self.states, name, lambda state: self._guarded(state, partial(read, state)))
        prepared = {state.oid: side for state, side in zip(self.states, sides, strict=True)}
        with server_moment(url, self.request.connections, self.progress, is_exact=is_live) as moment:
            pool = TablePool.of(self.archive.spark, threads, "asking for", self.progress)
            ask = partial(_answered, moment)
            results = pool.map(self.states, name, lambda s: self._guarded(s, partial(ask, prepared[s.oid])))
            gone = {row["oid"] for row in moment.ask(rewritten(state.oid for state in self.states))}
            known = {state.full_name for state in last.tables.values()}
            others = [table for name, table in sorted(catalog.items()) if name not in known]
            missing, unread = self._unknown(moment, others)
        if is_live:
            mark(url)
        results = [
            VerifiedTable(state.schema, state.table, why_not=_REWRITTEN, is_undecided=True)
            if state.oid in gone
            else own
            for state, own in zip(self.states, results, strict=True)
        ]
        return ServerAnswer(
            moment.lsn,
            last.number - last.resumed,
            last.last_commit_lsn if self.request.since else moment.lsn,
            datetime.now(timezone.utc).isoformat(timespec="seconds"),
            shown(url),
            tuple(result for result in results if isinstance(result, AskedTable)),
            (*(result for result in results if isinstance(result, VerifiedTable)), *unread),
            missing,
        )

    def _unknown(
        self, moment: ServerMoment, tables: Sequence[CatalogTable]
    ) -> tuple[tuple[tuple[str, str], ...], list[VerifiedTable]]:
        """The published tables that Delta doesn't have (`tables`), split into those with rows and those that can't be
        read."""
        missing, unread = [], []
        for table in tables:
            name = table.relation.namespace, table.relation.name
            try:
                with server_errors(of_table=True):
                    missing += [name] if PublishedTable(table, 1).has_rows(moment) else []
            except TableError as error:
                unread.append(VerifiedTable(*name, why_not=str(error), is_held=True))
        return tuple(missing), unread

    def _catalog(self, url: str) -> dict[str, CatalogTable]:
        [row] = ask_server(url, QUERY)
        patterns, rule_for = self.request.tables or ["*"], self.archive.config.rule_for
        catalog = read_catalog(row["catalog"], self.request.publications, lambda name: is_chosen(name, patterns))
        tables = (t for t in catalog.tables if not rule_for(t.relation.namespace, t.relation.name).skip)
        return {table.relation.full_name: table for table in tables}

    def _read(
        self, catalog: Mapping[str, CatalogTable], user_types: UserTypes, state: TableState
    ) -> _Comparison | VerifiedTable:
        why, is_held = why_not_read(self.archive.spark, state)
        table = catalog.get(state.full_name)
        if why is not None or table is None:
            why = why or "the server doesn't publish it"
            return VerifiedTable(state.schema, state.table, why_not=why, is_held=is_held)
        changed = self.changed.get(state.oid)
        if changed is None and state.oid in self.changed:
            return VerifiedTable(state.schema, state.table, ranges=1, ranges_skipped=1)
        side = DeltaSide.stored(self.archive.spark, state, user_types)
        other = PublishedTable(table, self.request.connections)
        choice = side.chosen(other.columns)
        if choice.why_not is not None:
            why, not_compared = choice.why_not, choice.not_compared
            return VerifiedTable(state.schema, state.table, why_not=why, not_compared=not_compared)
        return _Comparison.of(side, other, choice, changed)

    def _guarded(self, state: TableState, work: Callable[[], R]) -> R | VerifiedTable:
        """The result of `work`; if an error concerns only this table, the table with the reason why it can't be
        compared."""
        try:
            return work()
        except FAULTS as error:
            return faulty_table(self.archive.spark, state.schema, state.table, error)


def _answered(moment: ServerMoment, prepared: _Comparison | VerifiedTable) -> AskedTable | VerifiedTable:
    if isinstance(prepared, VerifiedTable):
        return prepared
    with server_errors(of_table=True):
        return prepared.answer(moment)

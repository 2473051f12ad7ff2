"""Matches the columns of a relation's newer version with those of its older version.

A Relation message lists a table's columns without their numbers in the catalog. PostgreSQL never reorders columns, and
appends new ones. Therefore:

- A name in both versions, in the same order, is the same column.
- Before a column that stayed, if there are as many new names as old ones, they are the old columns, renamed in order.
- A declaration in the configuration (`columns: {new: {renamed_from: old}}`, `columns: {new: added}`) overrides both.
- If catalog Messages have numbered the columns of both versions, only the numbers decide.

Values are never stored under a name that may be wrong. A TableError, which lists the explanations as declarations,
holds the table if

- names in both versions are in a different order
- there are fewer new names than old ones before a column that stayed
- a new name before a column may be that column, and its name may belong to a new column
- a column has the type and modifier of a column that is gone
- fewer commands than this reading needs would also explain the step.

The following readings remove no values. Each is a *doubt* until it is declared:

- After the last column that stayed, new names are new columns, and old columns are *retired*: they stay in the target
  with their values. Without old columns there, it is a doubt only if another reading needs no more commands.
- If the last columns have other types, they were retyped, not dropped and added again. The same goes for a column next
  to one that is gone.
- An excess new name before a column is a column that the publication didn't include before (a column list, a generated
  column). Its values in existing rows were never sent.

Some changes leave no trace: a column that was dropped and replaced by another one with its type and name; a last column
that was dropped and added again with its type.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, combinations, pairwise

from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import RelationColumn

# The configuration's declarations: each column's former name, or None for a new column. A tuple has the declarations
# for several steps, in order.
Declared = Mapping[str, str | tuple[str | None, ...] | None]

DeclaredStep = Mapping[str, str | None]

Columns = Sequence[RelationColumn]

_MOST_EXPLAINED, _SHOWN = 8, 3  # limits: columns that are explained, and explanations that are shown

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}


@dataclass(frozen=True, slots=True)
class Doubt:
    """A column of a newer version that may or may not be new, as far as the archive shows.

    is_kept: it was read as the older column with its name, but another type; otherwise, it was read as new. former:
    names of the older columns that it may be. earlier: declarations for this column that earlier steps have used.
    """

    column: str
    is_kept: bool
    former: tuple[str, ...]
    earlier: tuple[str | None, ...] = ()

    @property
    def reading(self) -> str | None:
        """The reading as a declaration."""
        return self.column if self.is_kept else None

    def __str__(self) -> str:
        was_read = "has kept its values under another type" if self.is_kept else "was read as a new column"
        others: list[str | None] = [None] if self.is_kept else list(self.former[:_SHOWN])
        reading, *other = (declaration({self.column: (*self.earlier, former)}) for former in (self.reading, *others))
        return f"{self.column} {was_read}. Declare {reading}, or {' or '.join(other)}"


def facts_of(declared: str | tuple[str | None, ...] | None) -> tuple[str | None, ...]:
    """A column's declarations, one per step."""
    return declared if isinstance(declared, tuple) else (declared,)


def declaration(columns: Declared) -> str:
    """The declaration as YAML, to be pasted into a table's rule."""
    values = (f"{_yaml(name)}: {_origins(facts_of(declared))}" for name, declared in columns.items())
    return f"columns: {{{', '.join(values)}}}"


def _origins(facts: Sequence[str | None]) -> str:
    texts = [*map(_origin, facts)]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _origin(former: str | None) -> str:
    return "added" if former is None else f"{{renamed_from: {_yaml(former)}}}"


def _yaml(name: str) -> str:
    is_plain = _PLAIN_NAME.fullmatch(name) and name.lower() not in _YAML_WORDS
    return name if is_plain else json.dumps(name, ensure_ascii=False)


class UndecidedError(TableError):
    """A step between two versions that needs a declaration. why: the reason. choices: the explanations, most likely
    first."""

    code = ErrorCode.UNDECIDED

    def __init__(self, why: str, choices: Sequence[DeclaredStep], earlier: Mapping[str, Sequence[str | None]]) -> None:
        """earlier: declarations that earlier steps have used or assumed for these columns."""
        full = [{name: (*earlier.get(name, ()), former) for name, former in choice.items()} for choice in choices]
        shown = "; or ".join(map(declaration, full[:_SHOWN]))
        shown = shown or "columns: {name: {renamed_from: old_name}} or columns: {name: added}, for each of them"
        super().__init__(f"the archive does not show which columns these are: {why}. Declare it: {shown}")
        self.why, self.choices = why, choices


@dataclass(slots=True)
class Identification:
    """origins: old position by new position, for columns that are not new. retired: old positions. unsent: new
    positions of columns whose values in existing rows were never sent. used: the declarations that decided."""

    origins: dict[int, int] = field(default_factory=dict)
    retired: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    used: DeclaredStep = field(default_factory=dict)


def identify(before: Columns, after: Columns, declared: DeclaredStep) -> Identification:
    """Raises TableError if a declaration is impossible, or if one is needed."""
    if are_numbered(before) and are_numbered(after):
        return _by_number(before, after, declared)
    if [c.described_as for c in before] == [c.described_as for c in after]:
        return Identification({place: place for place in range(len(after))})
    versions = Versions(before, after)
    anchors = versions.declared_origins(declared)
    anchored = {place: origin for place, origin in anchors.items() if origin is not None}
    named = versions.named(anchors)
    kept = dict(sorted({**anchored, **named}.items()))
    if not _increases(kept.values()):
        raise versions.undecided("names that both versions have are out of order", anchors)
    found = Identification({**kept})
    for gap in versions.gaps(kept):
        _fill(versions, found, gap, anchors, named)
    _judge_types(versions, found, anchors, named)
    if not found.unsent:
        _judge_count(versions, found, anchors)
    if anchors and not _is_certain(versions, found):
        found.used = {after[place].name: declared[after[place].name] for place in anchors}
    return found


def are_numbered(columns: Columns) -> bool:
    """True if catalog Messages describe the columns."""
    return all(column.number is not None for column in columns)


def _by_number(before: Columns, after: Columns, declared: DeclaredStep) -> Identification:
    """Matches by the catalog's numbers. A declaration of a new or renamed column must agree."""
    old = {column.number: place for place, column in enumerate(before)}
    found = Identification({place: old[c.number] for place, c in enumerate(after) if c.number in old})
    for place, column in enumerate(after):
        origin = found.origins.get(place)
        former = None if origin is None else before[origin].name
        if column.name in declared and former != column.name:
            if declared[column.name] != former:
                raise TableError(
                    f"{declaration({column.name: declared[column.name]})} contradicts the server's catalog, by which "
                    f"it is {declaration({column.name: former})}: remove the declaration"
                )
            found.used = {**found.used, column.name: former}
    return found


def _is_certain(versions: Versions, found: Identification) -> bool:
    """True if the columns would be identified the same way without declarations, and without doubts."""
    try:
        undeclared = identify(versions.before, versions.after, {})
    except TableError:
        return False
    return not undeclared.doubts and (undeclared.origins, undeclared.retired) == (found.origins, found.retired)


@dataclass(frozen=True, slots=True)
class _Gap:
    """Old and new positions before a column that stayed, or after all of them. next: the new position of that
    column."""

    old: list[int]
    new: list[int]
    next: int | None


def _fill(
    versions: Versions, found: Identification, gap: _Gap, anchors: Mapping[int, int | None], named: Mapping[int, int]
) -> None:
    """Identifies the columns in a gap. Raises TableError."""
    old, new = gap.old, [place for place in gap.new if place not in anchors]
    if gap.next is not None:
        found.unsent += [place for place in gap.new if place in anchors]
        if len(new) == len(old):
            found.origins.update(zip(new, old, strict=True))
            return
        if old and new and len(old) > len(new):
            names = ", ".join(versions.before[place].name for place in old)
            raise versions.undecided(f"some of {names} were renamed and others dropped", anchors)
    if gap.next is not None and len(new) > len(old):
        origin = named.get(gap.next)
        if origin is not None and versions.before[origin].full_type == versions.after[new[-1]].full_type:
            name, other = versions.before[origin].name, versions.after[new[-1]].name
            why = f"{name} was renamed to {other}, and its name given to a new column; or {other} is newly published"
            raise versions.undecided(why, anchors)
        found.unsent += new
        old = [*old, *([] if origin is None else [origin])]
    former = tuple(versions.before[place].name for place in old[:_SHOWN])
    if new and old:
        found.doubts += [Doubt(versions.after[place].name, False, former) for place in new]
        found.retired += gap.old


def _judge_types(
    versions: Versions, found: Identification, anchors: Mapping[int, int | None], named: Mapping[int, int]
) -> None:
    """Adds doubts about retyped columns. Raises TableError."""
    used = set(found.origins.values())
    gone = {place for place in range(len(versions.before)) if place not in used}
    gone_types = {versions.before[place].full_type: versions.before[place].name for place in gone}
    is_last = True
    for place, origin in sorted(found.origins.items(), reverse=True):
        is_retyped = versions.is_retyped(origin, place)
        column = versions.after[place]
        if is_retyped and place not in anchors:
            if column.full_type in gone_types:
                taken = gone_types[column.full_type]
                raise versions.undecided(f"{column.name} has the type that {taken} had, which is gone", anchors)
            if place in named and (is_last or {origin - 1, origin + 1} & gone):
                found.doubts.append(Doubt(column.name, True, ()))
        is_last = is_last and is_retyped and place in named


def _judge_count(versions: Versions, found: Identification, anchors: Mapping[int, int | None]) -> None:
    """Compares the reading with all other readings. Raises TableError."""
    places = range(len(versions.after))
    commands = versions.cost(found.origins, range(len(versions.before)), places)
    fewest, readings = versions.fewest_commands(commands, anchors)
    new = [place for place in places if place not in found.origins and place not in anchors]
    if fewest < commands or readings == 1:
        if fewest < commands and not found.doubts:
            raise versions.undecided("fewer commands explain them, too", anchors)
        return
    if not new:
        raise versions.undecided("they can be read in several ways", anchors)
    last = [versions.before[place].name for place in sorted(found.origins.values())[-len(new) :]]
    known = {doubt.column: doubt.former for doubt in found.doubts if not doubt.is_kept}
    doubts = {versions.after[place].name: known.get(versions.after[place].name, ()) for place in new}
    found.doubts = [doubt for doubt in found.doubts if doubt.is_kept]
    found.doubts += [Doubt(name, False, tuple(dict.fromkeys((*former, *last)))) for name, former in doubts.items()]


@dataclass(frozen=True, slots=True)
class Versions:
    """The columns of two versions."""

    before: Columns
    after: Columns

    def is_retyped(self, origin: int, place: int) -> bool:
        return self.before[origin].full_type != self.after[place].full_type

    def declared_origins(self, declared: DeclaredStep) -> dict[int, int | None]:
        """Declared old positions by new position, or None for a new column, for declarations that apply to this step
        rather than another one. Raises TableError if a declaration is impossible."""
        old, new = _places(self.before), _places(self.after)
        moved = self._out_of_order(old)
        origins: dict[int, int | None] = {}

        def is_open(name: str) -> bool:
            """True if it is uncertain whether the column is the older one with its name."""
            own = old.get(name)
            is_other = name in new and origins.get(new[name], own) != own
            return own is None or name in moved or is_other or self._crosses(name, old, new, origins)

        def is_meant(name: str, former: str | None) -> bool:
            if former is None:
                is_behind_new = any(origin is None and place < new[name] for place, origin in origins.items())
                is_used = old.get(name) in origins.values()
                return is_open(name) or is_behind_new or is_used or self.is_retyped(old[name], new[name])
            if former == name:
                return name in old and (name in moved or self.is_retyped(old[name], new[name]))
            return former in old and (is_open(name) or former not in new or is_open(former))

        left = {name: declared[name] for name in new if name in declared}
        found_any = True
        while found_any:  # one declaration may reveal that another one applies
            found_any = False
            for name, former in [*left.items()]:
                if is_meant(name, former):
                    origins[new[name]] = None if former is None else old[former]
                    del left[name]
                    found_any = True
        taken = [origin for _, origin in sorted(origins.items()) if origin is not None]
        if not _increases(taken):
            names = {self.after[place].name: declared[self.after[place].name] for place in origins}
            start, end = self._differing()
            was, now = (columns[start : len(columns) - end][:_MOST_EXPLAINED] for columns in (self.before, self.after))
            raise TableError(
                f"{declaration(names)} is impossible: PostgreSQL never changes the order of columns. It was "
                f"{', '.join(column.name for column in was)}, and is {', '.join(column.name for column in now)}"
            )
        return origins

    def named(self, anchors: Mapping[int, int | None]) -> dict[int, int]:
        """Old positions by new position, for names that are in both versions and have no declaration."""
        old, taken = _places(self.before), set(anchors.values())
        named = {place: old.get(column.name) for place, column in enumerate(self.after) if place not in anchors}
        return {place: origin for place, origin in named.items() if origin is not None and origin not in taken}

    def _crosses(
        self, name: str, old: Mapping[str, int], new: Mapping[str, int], origins: Mapping[int, int | None]
    ) -> bool:
        """True if, given the known origins, the older column with this name can't be the new one."""
        place, own = new[name], old[name]
        return any(origin is not None and (origin < own) != (other < place) for other, origin in origins.items())

    def _out_of_order(self, old: Mapping[str, int]) -> set[str]:
        names = [column.name for column in self.after if column.name in old]
        places = [old[name] for name in names]
        highest = accumulate(places, max)
        lowest = [*accumulate(reversed(places), min)][::-1]
        bounds = zip(names, places, highest, lowest, strict=True)
        return {name for name, place, high, low in bounds if place < high or place > low}

    def gaps(self, kept: Mapping[int, int]) -> Iterator[_Gap]:
        """The runs of columns between kept columns, including the ends. kept: old positions by new position, in
        order."""
        old_from, new_from = 0, 0
        for place, origin in kept.items():
            yield _Gap([*range(old_from, origin)], [*range(new_from, place)], place)
            old_from, new_from = origin + 1, place + 1
        yield _Gap([*range(old_from, len(self.before))], [*range(new_from, len(self.after))], None)

    def undecided(self, why: str, anchors: Mapping[int, int | None]) -> UndecidedError:
        return UndecidedError(why, self.explanations(anchors), {})

    def explanations(self, anchors: Mapping[int, int | None]) -> list[DeclaredStep]:
        """The declarations that explain the step, those with the fewest changes first. anchors: declared origins."""
        start, end = self._differing()
        rest = max(len(self.before), len(self.after)) - start
        if rest <= _MOST_EXPLAINED:  # equal columns at the end may be different ones
            end = 0
        elif rest - end > _MOST_EXPLAINED:
            return []
        olds = [*range(start, len(self.before) - end)]
        news = [*range(start, len(self.after) - end)]
        readings = [dict(zip(news, chosen, strict=False)) for chosen in _subsets(olds, len(news))]
        named = {place: origin for place, origin in self.named({}).items() if place in news}
        if _increases(named.values()):
            readings.append(named)
        costs = [(self.cost(origins, olds, news), origins) for origins in readings if _agrees(origins, news, anchors)]
        costs.sort(key=lambda reading: (reading[0], self.retyped(reading[1])))
        most = costs[0][0] + 1 if costs else 0
        found = [self._declaration(origins, news) for cost, origins in costs if cost <= most]
        return [names for i, names in enumerate(found) if names and names not in found[:i]]

    def _differing(self) -> tuple[int, int]:
        """The numbers of equal columns at the start and at the end."""
        pairs = [*zip(self.before, self.after, strict=False)]
        start = next((i for i, (old, new) in enumerate(pairs) if old.described_as != new.described_as), len(pairs))
        most = min(len(self.before), len(self.after)) - start
        end = 0
        while end < most and self.before[-end - 1].described_as == self.after[-end - 1].described_as:
            end += 1
        return start, end

    def retyped(self, origins: Mapping[int, int]) -> int:
        return sum(self.is_retyped(origin, place) for place, origin in origins.items())

    def cost(self, origins: Mapping[int, int], olds: Sequence[int], news: Sequence[int]) -> int:
        """The number of commands that this reading needs."""
        renamed = sum(self.before[origin].name != self.after[place].name for place, origin in origins.items())
        return self.retyped(origins) + renamed + len(olds) + len(news) - 2 * len(origins)

    def fewest_commands(self, most: int, anchors: Mapping[int, int | None]) -> tuple[int, int]:
        """The minimum number of commands that explain the step, and the number of such readings. most: searches only
        readings with up to this many."""
        beyond = most + 1
        # For the old columns so far: by number of new columns that they became, the fewest commands and the readings.
        best: dict[int, tuple[int, int]] = {0: (0, 1)}
        for origin in range(len(self.before)):
            following: dict[int, tuple[int, int]] = {}
            for place, (commands, readings) in best.items():
                ways = [(place, commands + 1)]
                if place < len(self.after) and anchors.get(place, origin) == origin:
                    renamed = self.before[origin].name != self.after[place].name
                    ways.append((place + 1, commands + renamed + self.is_retyped(origin, place)))
                for reached, needed in ways:
                    known, number = following.get(reached, (beyond, 0))
                    if needed < known:
                        following[reached] = needed, readings
                    elif needed == known < beyond:
                        following[reached] = needed, number + readings
            best = following
        least = max((place + 1 for place, origin in anchors.items() if origin is not None), default=0)
        whole = [(n + len(self.after) - place, r) for place, (n, r) in best.items() if place >= least]
        fewest = min((commands for commands, _ in whole), default=beyond)
        return fewest, sum(readings for commands, readings in whole if commands == fewest)

    def _declaration(self, origins: Mapping[int, int], news: Sequence[int]) -> DeclaredStep:
        names: dict[str, str | None] = {}
        for place in news:
            column, origin = self.after[place], origins.get(place)
            if origin is None or self.before[origin].described_as != column.described_as:
                names[column.name] = None if origin is None else self.before[origin].name
        return names


def _subsets(olds: Sequence[int], most: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(olds, number) for number in range(min(len(olds), most) + 1))


def _agrees(origins: Mapping[int, int], places: Sequence[int], anchors: Mapping[int, int | None]) -> bool:
    return all(origins.get(place) == origin for place, origin in anchors.items() if place in places)


def _places(columns: Columns) -> dict[str, int]:
    return {column.name: place for place, column in enumerate(columns)}


def _increases(places: Iterable[int]) -> bool:
    return all(first < second for first, second in pairwise(places))

"""A table's declarations. Each one applies to one step between two versions: the first one that needs it.

Later steps may look alike but concern another column. A name may have several declarations, for successive steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise, product

from pgoutput_etl.errors import TableError
from pgoutput_etl.reasons import ReasonKind
from pgoutput_etl.schema.column_matching import (
    Columns,
    Declared,
    DeclaredStep,
    Doubt,
    Identification,
    UndecidedError,
    Versions,
    declaration,
    facts_of,
    identify,
)

Used = Mapping[str, tuple[str | None, ...]]

_MOST_TRIED, _MOST_SEARCHED = 64, 1000  # combinations of declarations to try for a step, and for a history

_MOST_PARTS, _MOST_OF_NAME = 1024, 2  # combinations to compare for a step, and next declarations of each name in them

_History = tuple[tuple[tuple[int, int], ...], ...]  # for each step, old positions by new position


@dataclass(slots=True)
class Declarations:
    """declared: in the configuration. used: declarations that earlier steps have used. taken: readings that earlier
    steps assumed without a declaration. planned: declarations for the following steps, if foreseen; None for a step if
    two fit."""

    declared: Declared
    used: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    taken: dict[str, tuple[str | None, ...]] = field(default_factory=dict)
    planned: list[DeclaredStep | None] = field(default_factory=list)

    def foresee(self, history: Sequence[Columns]) -> None:
        """Decides which steps of a history get which declarations: a step that doesn't need one may look like the later
        step that does."""
        steps = [(before, after) for before, after in pairwise(history) if before != after]
        if self.declared and len(steps) > 1:
            search = _Search(steps, sum(map(len, self.left().values())))
            search.follow(self, [], _Cost())
            ways = [*search.best.values()][: 1 if search.cost.doubts else None]  # doubts are reported anyway
            steps_used = zip(*ways, strict=True)
            self.planned = [used[0] if all(other == used[0] for other in used) else None for used in steps_used]

    def identify(self, before: Columns, after: Columns) -> Identification:
        """Identifies a step's columns with the remaining declarations, and marks those that it needs as used. Raises
        TableError."""
        if self.planned and before != after:
            planned = self.planned.pop(0)
            if planned is None:
                raise TableError(
                    "its declarations fit its changes in two orders, under which columns differ: "
                    f"{declaration(self.declared)}. Declare a column that kept its name between others, too "
                    "({renamed_from: its own name}), or load a snapshot",
                    ReasonKind.ON_SERVER,
                )
            return self._identify(before, after, [planned])
        return self._identify(before, after, _offers(_of_columns(self.left(), after)))

    def _identify(self, before: Columns, after: Columns, offers: Iterable[DeclaredStep]) -> Identification:
        left = self.left()
        refused: TableError | None = None
        found: Identification | None = None
        for offer in offers:
            try:
                tried = identify(before, after, offer)
            except TableError as error:
                refused = refused or error
                continue
            found = found or tried
            if not any(doubt.column in left for doubt in tried.doubts):
                found = tried
                break
        if found is None:
            assert refused is not None
            raise self._with_earlier(refused)
        for name, former in found.used.items():
            self._use(name, former, left)
        return found

    def left(self) -> Used:
        """The declarations that no step has used."""
        left: dict[str, tuple[str | None, ...]] = {}
        for name, declared in self.declared.items():
            facts = [*facts_of(declared)]
            for former in self.used.get(name, ()):
                if former in facts:
                    facts.remove(former)
            if facts:
                left[name] = tuple(facts)
        return left

    def copy(self) -> Declarations:
        return Declarations(self.declared, {**self.used}, {**self.taken}, [*self.planned])

    def doubts(self, found: Iterable[Doubt]) -> list[Doubt]:
        """The new doubts, each with the declarations that earlier steps have used or assumed for its column."""
        doubts = [replace(doubt, earlier=self._earlier(doubt.column)) for doubt in found]
        for doubt in doubts:
            self._take(doubt)
        return doubts

    def open_doubts(self, known: Iterable[Doubt]) -> list[Doubt]:
        """The older doubts that no declaration has resolved since. Marks the declarations that resolved the others as
        used."""
        is_open: list[Doubt] = []
        for doubt in known:
            left = self.left()
            if doubt.reading in left.get(doubt.column, ()):
                self._use(doubt.column, doubt.reading, left)
            else:
                self._take(doubt)
                is_open.append(doubt)
        return is_open

    def likeliest(self, history: Sequence[Columns]) -> Declared:
        """The likeliest declarations for all columns that need more of them in the steps of a history."""
        declarations, found = self.copy(), dict[str, None]()  # in the order in which the steps need them
        for before, after in pairwise(history):
            try:
                declarations.doubts(declarations.identify(before, after).doubts)
            except UndecidedError as error:
                for name, former in error.choices[0].items() if error.choices else ():
                    declarations.used[name] = (*declarations._earlier(name), former)
                    declarations.taken.pop(name, None)
                    found[name] = None
            except TableError:
                continue  # an impossible declaration
        left = declarations.left()
        return {name: (*declarations.used[name], *left.get(name, ())) for name in found}

    def _use(self, name: str, former: str | None, left: Used) -> None:
        """Earlier declarations were for steps that didn't need them."""
        facts = left[name]
        self.used[name] = (*self.used.get(name, ()), *facts[: facts.index(former) + 1])

    def _take(self, doubt: Doubt) -> None:
        self.taken[doubt.column] = (*self.taken.get(doubt.column, ()), doubt.reading)

    def _earlier(self, name: str) -> tuple[str | None, ...]:
        return (*self.used.get(name, ()), *self.taken.get(name, ()))

    def _with_earlier(self, error: TableError) -> TableError:
        """The error, with the declarations of its columns that other steps use added to its choices."""
        if not isinstance(error, UndecidedError):
            return error
        names = {name for choice in error.choices for name in choice}
        return UndecidedError(error.why, error.choices, {name: self._earlier(name) for name in names})


def _of_columns(left: Used, columns: Columns) -> Used:
    """In the order of the configuration: if two fit a step, the first one is used first."""
    names = {column.name for column in columns}
    return {name: facts for name, facts in left.items() if name in names}


def _offers(left: Used) -> Iterable[DeclaredStep]:
    """One declaration per name. Combinations of early declarations come first, because each name's declarations are in
    the order of the steps."""
    places = product(*(range(len(facts)) for facts in left.values()))
    for chosen in sorted(islice(places, _MOST_TRIED), key=sum):
        yield {name: facts[place] for (name, facts), place in zip(left.items(), chosen, strict=True)}


@dataclass(frozen=True, slots=True, order=True)
class _Cost:
    """unused: declarations that no step has used. doubts: those about declared columns. overruled: declarations used by
    steps that would be certain without them, but with other columns."""

    unused: int = 0
    doubts: int = 0
    overruled: int = 0


@dataclass(slots=True)
class _Search:
    """Searches for declarations that leave no step of a history undecided. declared: number of declarations. best: the
    ways with the lowest cost, one for each different result."""

    steps: Sequence[tuple[Columns, Columns]]
    declared: int
    best: dict[_History, list[DeclaredStep]] = field(default_factory=dict)
    cost: _Cost = field(default_factory=lambda: _Cost(unused=sys.maxsize))
    tries: int = _MOST_SEARCHED

    def follow(self, declarations: Declarations, way: Sequence[Identification], cost: _Cost) -> None:
        """Completes the identification of the first steps in all possible ways."""
        if len(way) == len(self.steps):
            self._add(way, replace(cost, unused=self.declared - sum(len(step.used) for step in way)))
            return
        ways = self._ways(declarations, *self.steps[len(way)])
        certain = [found for found, doubts, _ in ways if not doubts]
        for found, doubts, following in ways:
            overruled = cost.overruled + _overruled(found, certain)
            total = replace(cost, doubts=cost.doubts + doubts, overruled=overruled)
            if total <= self.cost:
                self.follow(following, [*way, found], total)

    def _add(self, way: Sequence[Identification], cost: _Cost) -> None:
        if cost < self.cost:
            self.best, self.cost = {}, cost
        if cost == self.cost:
            self.best.setdefault(tuple(tuple(sorted(step.origins.items())) for step in way), [s.used for s in way])

    def _ways(
        self, declarations: Declarations, before: Columns, after: Columns
    ) -> list[tuple[Identification, int, Declarations]]:
        """The ways to identify a step, each with its number of doubts and the declarations that remain for later
        steps."""
        left = declarations.left()
        ways: list[tuple[Identification, int, Declarations]] = []
        for offer in _meant(_parts(_of_columns(left, after)), Versions(before, after)):
            self.tries -= 1
            if self.tries < 0 or (self.cost == _Cost() and len(self.best) > 1):
                break
            following = declarations.copy()
            try:
                found = following._identify(before, after, [offer])
            except TableError:
                continue
            if found.used not in [way.used for way, _, _ in ways]:
                doubts = sum(doubt.column in declarations.declared for doubt in found.doubts)
                ways.append((found, doubts, following))
        return ways


def _overruled(found: Identification, certain: Iterable[Identification]) -> int:
    """The number of declarations that override a certain step: without them, it would be certain, with other
    columns."""
    parts = (other for other in certain if other.used.items() < found.used.items() and other.origins != found.origins)
    return max((len(found.used) - len(other.used) for other in parts), default=0)


def _parts(left: Used) -> Iterable[DeclaredStep]:
    """One declaration or none per name. Combinations that skip no declarations, which would leave them unused, come
    first, and among these, those with the most."""
    facts = [[*islice(own, _MOST_OF_NAME)] for own in left.values()]

    def cost(chosen: tuple[int, ...]) -> tuple[int, int]:
        pairs = [*zip(chosen, facts, strict=True)]
        return sum(place for place, own in pairs if place < len(own)), sum(place == len(own) for place, own in pairs)

    for chosen in sorted(islice(product(*(range(len(own) + 1) for own in facts)), _MOST_PARTS), key=cost):
        pairs = zip(left, facts, chosen, strict=True)
        yield {name: own[place] for name, own, place in pairs if place < len(own)}


def _meant(offers: Iterable[DeclaredStep], versions: Versions) -> Iterator[DeclaredStep]:
    """One of the offers that mean the same for a step."""
    known: list[Mapping[int, int | None]] = []
    for offer in offers:
        try:
            origins = versions.declared_origins(offer)
        except TableError:
            continue
        if origins not in known:
            known.append(origins)
            yield offer

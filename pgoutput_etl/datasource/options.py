"""The options of `spark.read.format("pgoutput")`, checked before any file is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.event_log import TRUNCATED
from pgoutput_etl.changes.events import DELETED, INSERTED, UPDATED
from pgoutput_etl.config.settings import Config, OnError, load_config
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.options import words
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.timestamps import parse_time

T = TypeVar("T")

E = TypeVar("E", bound=Enum)

OP, COMMIT_LSN, COMMIT_TS = "_op", "_commit_lsn", "_commit_ts"

_OPS = (INSERTED, UPDATED, DELETED, TRUNCATED)

_RANGE = ("from_lsn", "to_lsn", "from_time", "to_time")

_NAMES = ("path", "paths", "tables", "kind", *_RANGE, "ops", "config", "source", "framing", "on_error")


class Kind(Enum):
    """The meaning of a frame's rows."""

    CHANGES = "changes"
    MESSAGES = "messages"
    TRANSACTIONS = "transactions"
    RELATIONS = "relations"


# Options that only affect some kinds.
_FOR_KINDS = {
    "tables": (Kind.CHANGES, Kind.RELATIONS),
    "ops": (Kind.CHANGES,),
    **dict.fromkeys(_RANGE, (Kind.CHANGES, Kind.MESSAGES, Kind.TRANSACTIONS)),
}


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Selects rows by commit and operation. Bounds are inclusive; None accepts any."""

    first_lsn: int | None = None
    last_lsn: int | None = None
    first_time: datetime | None = None
    last_time: datetime | None = None
    ops: tuple[str, ...] | None = None

    def may_have(self, commits: tuple[int, int] | None) -> bool:
        """True if a file with this lowest and highest commit LSN may have such rows."""
        if self.first_lsn is None and self.last_lsn is None:
            return True
        is_late = self.first_lsn is None or (commits is not None and commits[1] >= self.first_lsn)
        is_early = self.last_lsn is None or (commits is not None and commits[0] <= self.last_lsn)
        return is_late and is_early

    def within(self, after: int, through: int) -> Narrowing:
        """Restricted to commits after one LSN, through another."""
        first = after + 1 if self.first_lsn is None else max(self.first_lsn, after + 1)
        last = through if self.last_lsn is None else min(self.last_lsn, through)
        return replace(self, first_lsn=first, last_lsn=last)

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        lsns, times = (self.first_lsn, self.last_lsn), (self.first_time, self.last_time)
        for name, (first, last) in ((COMMIT_LSN, lsns), (COMMIT_TS, times)):
            for bound, compare in ((first, pc.greater_equal), (last, pc.less_equal)):
                if bound is not None:
                    column = batch.column(name)
                    batch = batch.filter(compare(column, pa.scalar(bound, column.type)))
        return batch if self.ops is None else batch.filter(pc.is_in(batch.column(OP), pa.array(self.ops)))


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """paths: files, folders, and globs. tables: names or shell patterns; empty for all tables. skips_damage: reads the
    rest of a damaged or incomplete archive."""

    paths: tuple[str, ...]
    kind: Kind
    tables: tuple[str, ...]
    narrowing: Narrowing
    config: Config | None
    framing: Framing
    skips_damage: bool

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        """options: by name in lower case. Raises ConfigError for an unknown option or an invalid value."""
        for name in options:
            if name not in _NAMES:
                raise ConfigError(f"option {name!r}: expected one of {', '.join(_NAMES)}")
        kind = _value(options, "kind", _member(Kind), Kind.CHANGES)
        for name, kinds in _FOR_KINDS.items():
            if name in options and kind not in kinds:
                raise ConfigError(f"option {name!r}: expected only with kind {' or '.join(k.value for k in kinds)}")
        config = load_config(options["config"], source=options.get("source")) if "config" in options else None
        framing, landing = (Framing.AUTO, ()) if config is None else (config.source.framing, (config.source.landing,))
        paths = (options["path"],) if "path" in options else landing
        paths = _value(options, "paths", lambda text: tuple(json.loads(text)), paths)
        if not paths:
            raise ConfigError("load: expected the path of an archive")
        return cls(
            paths,
            kind,
            _value(options, "tables", words, ()),
            Narrowing(
                _value(options, "from_lsn", parse_lsn, None),
                _value(options, "to_lsn", parse_lsn, None),
                _value(options, "from_time", parse_time, None),
                _value(options, "to_time", parse_time, None),
                _value(options, "ops", _ops, None),
            ),
            config,
            _value(options, "framing", _member(Framing), framing),
            _value(options, "on_error", _member(OnError), OnError.FAIL) is OnError.QUARANTINE,
        )

    @property
    def table(self) -> str | None:
        """The table, if one is named."""
        is_name = len(self.tables) == 1 and not re.search(r"^!|[*?\[]", self.tables[0])
        return self.tables[0] if is_name else None


def _value(options: Mapping[str, str], name: str, parse: Callable[[str], T], default: T) -> T:
    if name not in options:
        return default
    try:
        return parse(options[name])
    except ValueError as error:
        raise ConfigError(f"option {name!r} has a wrong value: {error}") from None


def _member(kind: type[E]) -> Callable[[str], E]:
    def parse(text: str) -> E:
        members = {member.value: member for member in kind}
        if text not in members:
            raise ValueError(f"expected one of {', '.join(members)}")
        return members[text]

    return parse


def _ops(text: str) -> tuple[str, ...]:
    if not set(words(text)) <= set(_OPS):
        raise ValueError(f"expected some of {', '.join(_OPS)}, separated by commas")
    return words(text)

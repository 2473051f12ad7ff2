"""The options of a command line, declared at the fields of a dataclass.

    first_lsn: Annotated[int | None, Option("the first commit", LSN, "--from-lsn")] = None

A field without a default is required. Options of the same field are mutually exclusive. A field may have former names:

    out: Annotated[str, Option("a new folder", FOLDER), Former("--into", "into")]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from typing import Any, TypeVar, get_type_hints

from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.timestamps import parse_duration, parse_time


@dataclass(frozen=True, slots=True)
class Value:
    """name: in the help. parse: converts the text to the field's value, or raises ValueError."""

    name: str
    parse: Callable[[str], object] = str


@dataclass(frozen=True, slots=True)
class Option:
    """help: its text. value: None for a switch, which sets the field to `means`. name: by default, the field's; a name
    without hyphens is for a positional argument. is_list: may be given several times. also: other fields that the
    option sets, with their values."""

    help: str
    value: Value | None = None
    name: str | None = None
    is_list: bool = False
    means: object = True
    also: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Former:
    """A former name of a field and its option: it works, but --help doesn't list it.

    option: as typed; keyword: in Python, for classes with `takes_former_names`. value: as in Option; by default, that
    of the field's first option.
    """

    option: str | None = None
    keyword: str | None = None
    value: Value | None = None


T = TypeVar("T")


def takes_former_names(part: type[T]) -> type[T]:
    """The dataclass, whose constructor also accepts fields by their former names."""
    construct: Callable[..., None] = part.__init__

    @wraps(construct)
    def __init__(self: T, *values: Any, **named: Any) -> None:  # noqa: N807
        construct(self, *values, **_renamed(part, named))

    setattr(part, "__init__", __init__)  # noqa: B010 # mypy lets no method be assigned
    return part


def _renamed(part: type[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    former = {own.keyword: (name, own) for name, own in _former_names(part)} if named else {}
    renamed = dict(named)
    for keyword in named.keys() & former.keys():
        name, own = former[keyword]
        if name in renamed:
            raise TypeError(f"{part.__name__}: {keyword} is the former name of {name}: expected one of them")
        value = renamed.pop(keyword)
        renamed[name] = own.value.parse(value) if own.value is not None and isinstance(value, str) else value
    return renamed


def _former_names(part: type[Any]) -> Iterator[tuple[str, Former]]:
    for name, hint in get_type_hints(part, include_extras=True).items():
        yield from ((name, own) for own in getattr(hint, "__metadata__", ()) if isinstance(own, Former))


def words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def one_of(choices: type[Enum], name: str | None = None) -> Value:
    texts = "|".join(choice.value for choice in choices)

    def parse(text: str) -> Enum:
        try:
            return choices(text)
        except ValueError:
            raise ValueError(f"expected {texts}") from None

    return Value(name or texts, parse)


def number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None


FILE, FOLDER, PATH, URL, NAME = map(Value, ("FILE", "FOLDER", "PATH", "URL", "NAME"))
NUMBER, XID = Value("N", number), Value("XID", number)
LSN, TIME, INTERVAL = Value("LSN", parse_lsn), Value("TIME", parse_time), Value("INTERVAL", parse_duration)
NAMES, PATTERNS = Value("NAME,…", words), Value("PATTERN,…", words)

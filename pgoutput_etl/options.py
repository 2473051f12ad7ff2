"""The options of a command line, declared at the fields of a dataclass.

    first_lsn: Annotated[int | None, Option("the first commit", LSN, "--from-lsn")] = None

A field without a default is required. Options of the same field exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.timestamps import parse_duration, parse_time


@dataclass(frozen=True, slots=True)
class Value:
    """name: in the help. parse: makes the field's value of the text, or raises ValueError."""

    name: str
    parse: Callable[[str], object] = str


@dataclass(frozen=True, slots=True)
class Option:
    """help: its text. value: None for a switch, which sets the field to `means`. name: by default, that of the field; a
    name without hyphens is that of an argument by its position. is_list: may be given several times. also: other fields
    that the option sets, with their values."""

    help: str
    value: Value | None = None
    name: str | None = None
    is_list: bool = False
    means: object = True
    also: tuple[tuple[str, object], ...] = ()


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

"""Checks the values of a YAML file with pydantic, using classes whose fields are the keys.

A mistake is a ConfigError that names the file, the key's path, and the expected value. It never quotes a value, which
may be a secret from the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import SequenceMatcher
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.dataclasses import dataclass as section
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from pgoutput_etl.config.yaml_file import Document, Mistake, is_within_key, written_path

_T = TypeVar("_T")

Path: TypeAlias = tuple[str | int, ...]


_MOST_MISTAKES = 100

SETTINGS = ConfigDict(hide_input_in_errors=True)  # resolves names in its own module immediately


def mistake(why: str, *path: str | int) -> PydanticCustomError:
    """An error for pydantic. path: below the value that is being checked."""
    return PydanticCustomError("mistake", "{why}", {"why": why, "path": path})


def expected(value: object, what: str, *path: str | int) -> PydanticCustomError:
    """The error that a key's value isn't what was expected. value: None if it is missing."""
    return mistake(f"{'missing: ' if value is None else ''}expected {what}", *path)


@contextmanager
def below(*path: str | int) -> Iterator[None]:
    """Prepends the path to the path of a mistake raised within the body."""
    try:
        yield
    except PydanticCustomError as error:
        found = error.context or {}
        raise mistake(found["why"], *path, *found["path"]) from None


def text(meaning: str) -> BeforeValidator:
    """A validator that requires non-empty text. meaning: what the text stands for, for the error."""

    def check(value: object) -> object:
        if isinstance(value, str) and value:
            return value
        quotes = " (in quotes)" if isinstance(value, int) else ""
        raise expected(value, f"a string{quotes}: {meaning}")

    return BeforeValidator(check)


def matching(pattern: str, why: str) -> AfterValidator:
    """A validator that requires text to match as a whole. why: the error."""

    def check(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise mistake(why)
        return value

    return AfterValidator(check)


def items(meaning: str) -> BeforeValidator:
    """A validator that requires a list. meaning: what was expected, for the error."""

    def check(value: object) -> object:
        if isinstance(value, list | tuple):
            return value
        raise expected(value, meaning)

    return BeforeValidator(check)


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names):
        raise mistake("expected one or more names, all different")
    return names


DIFFERENT = AfterValidator(_different)


def about(meaning: str, example: object) -> Any:
    """The description of a key in the documentation and the schema. meaning: in Markdown."""
    return Field(description=meaning, examples=[example])


def as_mapping(value: object) -> dict[str, Any]:
    """A mapping with any keys. A null value counts as missing."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise expected(value, "a mapping with strings as keys")
    return {key: item for key, item in value.items() if item is not None}


def _boolean(value: object) -> bool:
    written = str(value).lower()  # a value from the environment is text
    if written not in ("true", "false"):
        raise expected(value, "true or false")
    return written == "true"


def _positive(value: object) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", str(value)):
        raise expected(value, "a whole number, 1 or more")
    return int(str(value))


def setting(value: object) -> str:
    """A text, number, or Boolean, as Spark and Delta write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    raise expected(value, "a string, a number, true or false")


_Variable: TypeAlias = Annotated[str, Field(pattern=r"\$\{")]  # from the environment

Flag: TypeAlias = Annotated[bool, BeforeValidator(_boolean, json_schema_input_type=bool | _Variable)]

Positive: TypeAlias = Annotated[int, BeforeValidator(_positive, json_schema_input_type=PositiveInt | _Variable)]

_Setting: TypeAlias = Annotated[str, BeforeValidator(setting, json_schema_input_type=str | int | float | bool)]

Settings: TypeAlias = Annotated[Mapping[str, _Setting], BeforeValidator(as_mapping)]


@section(frozen=True, config=SETTINGS)
class Section:
    """A mapping in the file, whose keys are the fields of a subclass. A null value counts as missing.

    computed: fields that are not keys. form: describes the mapping, for errors.
    """

    computed: ClassVar[frozenset[str]] = frozenset()
    form: ClassVar[str] = "a mapping with strings as keys"

    @classmethod
    def computed_from(cls, given: dict[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
        """A hook for subclasses: returns the mapping with its computed fields."""
        del context  # for subclasses
        return given

    @classmethod
    def key_fields(cls) -> dict[str, FieldInfo]:
        """pydantic's information about each key that may be in the file, which excludes computed fields."""
        found: dict[str, FieldInfo] = cls.__pydantic_fields__  # type: ignore[attr-defined] # pydantic adds it
        return {name: field for name, field in found.items() if name not in cls.computed}

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any, info: ValidationInfo) -> Any:
        if not (given is None or isinstance(given, list | str | int | Mapping)):
            return given  # the arguments of a constructor, or an object
        if not isinstance(given, Mapping | None):
            raise expected(given, cls.form)
        keys = cls.key_fields()
        absent = dict.fromkeys(name for name, field in keys.items() if field.is_required())
        values = absent | known_keys(given or {}, keys)
        return cls.computed_from(values, info.context or {})


def known_keys(given: Mapping[Any, Any], known: Collection[str]) -> dict[str, Any]:
    """The keys with a value, as a dictionary. Raises the error about an unknown key, with the most similar known
    one."""
    for key in given:
        if key not in known:
            near = max(known, key=lambda name: _likeness(name, str(key)))
            hint = f"; did you mean '{near}'?" if _likeness(near, str(key)) > 0.6 else ""
            raise mistake(f"unknown key '{key}'{hint} (known: {', '.join(known)})", str(key))
    return {key: value for key, value in given.items() if value is not None}


def _likeness(a: str, b: str) -> float:
    """0 to 1; letters out of order count half, so tragte is closer to target than to state."""
    return (SequenceMatcher(None, a, b).ratio() + SequenceMatcher(None, sorted(a), sorted(b)).ratio()) / 2


def checked(kind: Any, document: Document, context: Mapping[str, Any] | None = None) -> Any:
    """The document as an object of this kind. context: for the kind's own checks. Raises ConfigError."""
    try:
        return TypeAdapter(kind).validate_python(document.values, context=context)
    except ValidationError as error:
        path, why = _first(error)
        raise document.error(Mistake(written_path(path), why)) from None


def mistakes(kind: Any, document: Document, context: Mapping[str, Any] | None = None) -> list[Mistake]:
    """All mistakes that can be found at once, by line: after each one, the rest is checked without its key. Stops after
    about _MOST_MISTAKES."""
    found, values = list(document.mistakes), document.values
    while len(found) < _MOST_MISTAKES:
        try:
            TypeAdapter(kind).validate_python(values, context=context)
        except ValidationError as error:
            described = [_described(details) for details in error.errors(include_url=False, include_input=False)]
        else:
            break
        known = {mistake.path for mistake in found}
        new = {written_path(path): (path, why) for path, why in described}
        new = {text: item for text, item in new.items() if not any(is_within_key(text, other) for other in known)}
        if not new:
            break
        found += [Mistake(text, why) for text, (_, why) in new.items()]
        for path, _ in new.values():
            values = _without(values, path)
    return sorted(found, key=lambda mistake: document.line(mistake.path) or 0)


def _without(values: Any, path: Path) -> Any:
    """The values without one key, and without mappings that had no other key; a list item becomes None."""
    if not path:
        return None
    key, *rest = path
    if isinstance(values, list) and isinstance(key, int) and key < len(values):
        item = _without(values[key], tuple(rest))
        return [*values[:key], item, *values[key + 1 :]]
    if not isinstance(values, dict) or key not in values:
        return values
    others = {name: value for name, value in values.items() if name != key}
    left = _without(values[key], tuple(rest)) if rest else None
    return {**values, key: left} if left else others


def part(kind: type[_T], value: object, context: Mapping[str, Any] | None = None) -> _T:
    """Checks a value within the check of another one. Raises a `mistake`."""
    try:
        return TypeAdapter(kind).validate_python(value, context=context)
    except ValidationError as error:
        path, why = _first(error)
        raise mistake(why, *path) from None


def made(kind: Callable[..., _T], **values: Any) -> _T:
    """An object made of values that have been checked individually. Raises a `mistake` if they can't be combined."""
    try:
        return kind(**values)
    except ValidationError as error:
        path, why = _first(error)
        raise mistake(why, *path) from None


def _first(error: ValidationError) -> tuple[Path, str]:
    """The path and text of the first mistake."""
    return _described(error.errors(include_url=False, include_input=False)[0])


def _described(found: ErrorDetails) -> tuple[Path, str]:
    return (*found["loc"], *found.get("ctx", {}).get("path", ())), _why(found)


def _why(found: ErrorDetails) -> str:
    if found["type"] == "enum":
        return f"expected one of {found['ctx']['expected'].replace(' or ', ', ').replace(chr(39), '')}"
    return found["msg"]

"""Several sources in one file: makes one document per source, each with the file's other sections.

`{source}` in the values of `target`, `state`, and `metrics` stands for the source's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pgoutput_etl.config.yaml_file import Document, FromEnvironment, Mistake, is_within_key
from pgoutput_etl.errors import ConfigError

SOURCE, SOURCES = "source", "sources"

_NAMED = ("target", "state", "metrics")  # sections with places that sources may need to keep separate

_PLACEHOLDER = "{source}"


def source_documents(document: Document) -> list[Document]:
    """One document per source, with a section `source`. Raises ConfigError."""
    values = document.values
    if not isinstance(values, Mapping) or values.get(SOURCES) is None:
        return [document]
    if values.get(SOURCE) is not None:
        raise document.error(Mistake(SOURCES, "expected source or sources, not both"))
    items = values[SOURCES]
    if not isinstance(items, list) or not items:
        raise document.error(Mistake(SOURCES, "expected a list of one or more sources"))
    _refuse_equal_names(document, items)
    shared = {key: value for key, value in values.items() if key != SOURCES}
    documents = [_document(document, shared, item, i) for i, item in enumerate(items)]
    _refuse_equal_files(document, documents)
    return documents


def chosen_document(document: Document, name: str | None) -> Document:
    """The document of the source with this name, or of the only source. Raises ConfigError."""
    documents = source_documents(document)
    names = [str(_name(one)) for one in documents]
    if name is not None and name not in names:
        raise ConfigError(f"--source: {document.file} has no source of this name; expected {' or '.join(names)}")
    if name is None and len(documents) > 1:
        raise ConfigError(
            f"{document.file}: expected the name of a source (--source), because it has several: {', '.join(names)}"
        )
    return documents[0 if name is None else names.index(name)]


def _document(document: Document, shared: Mapping[Any, Any], item: object, number: int) -> Document:
    place = f"{SOURCES}[{number}]"
    name = item.get("name") if isinstance(item, Mapping) else None
    values = {key: _named(value, str(name)) if key in _NAMED else value for key, value in shared.items()}
    own = (mistake for mistake in document.mistakes if not is_within_key(mistake.path, SOURCES))
    mine = (mistake for mistake in document.mistakes if is_within_key(mistake.path, place))
    moved = (Mistake(SOURCE + mistake.path[len(place) :], mistake.why) for mistake in mine)
    return replace(document, values={SOURCE: item, **values}, mistakes=(*own, *moved), source_place=place)


def _named(value: object, name: str) -> object:
    if isinstance(value, dict):
        return {key: _named(item, name) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    text = value.replace(_PLACEHOLDER, name)
    return FromEnvironment(text) if isinstance(value, FromEnvironment) else text


def _name(document: Document) -> object:
    return document.value((SOURCE, "name"))


def _refuse_equal_names(document: Document, items: Sequence[object]) -> None:
    names: dict[object, int] = {}
    for i, item in enumerate(items):
        name = item.get("name") if isinstance(item, Mapping) else None
        first = i if name is None else names.setdefault(str(name), i)
        if first != i:
            path = f"{SOURCES}[{i}].name"
            raise document.error(Mistake(path, f"expected another name than that of {SOURCES}[{first}]"))


def _refuse_equal_files(document: Document, documents: Sequence[Document]) -> None:
    """Raises ConfigError if a source would replace another source's file."""
    files = [one.value(("metrics", "prometheus")) for one in documents]
    if None not in files and len({*map(str, files)}) < len(files):
        why = f"expected {_PLACEHOLDER} in it: each source replaces its file"
        raise document.error(Mistake("metrics.prometheus", why))

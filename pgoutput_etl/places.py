"""The places of target tables. Only this module parses a place, or makes its text.

A Delta table's place is the path of its folder or, in a catalog, its name there, with each part in backticks. In a
table that several sources share, each tag also has a place, for the rows with its values: the table's place followed by
the tag's columns and values in brackets. The ledger, the configuration, and reports contain a place's text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

from pgoutput_etl.identifiers import is_within, path_segment, quoted

_ROOTED = re.compile(r"[/`]|[A-Za-z][A-Za-z0-9+.-]*:")

_TAGGED = re.compile(r"(?P<table>.+)\[(?P<tag>\w+=[^][=,]+(?:,\w+=[^][=,]+)*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """A whole table, or a tag's rows in a table that several sources share. name: a path, or a name in a catalog; empty
    for a table that was never written. pairs: columns and values of the tag."""

    name: str
    pairs: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(text: str) -> Place:
        tagged = _TAGGED.fullmatch(text)
        if tagged is None:
            return Place(text)
        pairs = (pair.split("=") for pair in tagged["tag"].split(","))
        return Place(tagged["table"], tuple((name, unquote(value)) for name, value in pairs))

    @staticmethod
    def below(folder: str, names: Iterable[str]) -> Place:
        """A subfolder named after a schema and a table, or the like."""
        return Place("/".join([folder.rstrip("/"), *map(path_segment, names)]))

    @staticmethod
    def in_catalog(catalog: str, schema: str, table: str) -> Place:
        """`catalog`.`schema`.`table`, in lower case because catalogs ignore case. With a prefix, as in main.shop:
        `main`.`shop_schema`.`table`."""
        name, _, prefix = catalog.partition(".")
        parts = (name, f"{prefix}_{schema}" if prefix else schema, table)
        return Place(".".join(quoted(part.lower()) for part in parts))

    def __str__(self) -> str:
        pairs = ",".join(f"{name}={quote(value, safe='')}" for name, value in self.pairs)
        return f"{self.name}[{pairs}]" if pairs else self.name

    def __bool__(self) -> bool:
        return bool(self.name)

    @property
    def table(self) -> Place:
        """The whole table's place."""
        return Place(self.name)

    @property
    def tag(self) -> dict[str, str]:
        """The values, by column, of the rows for which the place stands; empty for a whole table."""
        return dict(self.pairs)

    @property
    def is_in_catalog(self) -> bool:
        return self.name.startswith("`")

    @property
    def is_remote(self) -> bool:
        """True for a path in object storage or another file system that is not the machine's."""
        return _ROOTED.match(self.name) is not None and not self.name.startswith(("/", "`", "file:"))

    @property
    def catalog_names(self) -> tuple[str, ...]:
        """The catalog, schema, and table in a catalog name."""
        return tuple(part.replace("``", "`") for part in re.findall(r"`((?:[^`]|``)*)`", self.name))

    @property
    def catalog_schema(self) -> str:
        """The schema of a catalog name, including its catalog, for SQL."""
        return self.name.rpartition(".")[0]

    @property
    def identifier(self) -> str:
        """The whole table's name in SQL."""
        return self.name if self.is_in_catalog else f"delta.{quoted(self.name)}"

    def tagged(self, tag: Mapping[str, str]) -> Place:
        """The place of a table's rows with a tag. tag: values by column, none of them empty."""
        return Place(self.name, tuple(tag.items())) if tag else self

    def is_within(self, folder: str) -> bool:
        """True if the table's folder is this folder or below it."""
        return is_within(self.name, folder)

    def is_named(self, folder: str, last: str) -> bool:
        """True for a path that ends with a name, anywhere below a folder named `folder`."""
        return f"/{folder}/" in self.name and self.name.endswith(f"/{last}")

    def absolute(self) -> Place:
        return Place(absolute_place(self.name), self.pairs)


NO_PLACE = Place("")


def is_relative(path: str) -> bool:
    """True for a path relative to a working folder: not a URL, and not a name in a catalog."""
    return bool(path) and not _ROOTED.match(path)


def absolute_place(place: str) -> str:
    """Makes a relative path absolute, based on this process's working folder; other places are unchanged. Doesn't
    resolve links.

    Hadoop's readers start relative paths from the JVM's working folder, and Delta's ALTER TABLE from the warehouse.
    """
    return os.path.abspath(place) if is_relative(place) else place  # noqa: PTH100 # Path keeps `..`

"""The tables that patterns on the command line choose."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import is_chosen, unmatched


def matching_names(patterns: Sequence[str], names: Collection[str], where: str) -> set[str]:
    """The names that the patterns choose. Raises ConfigError for a pattern without a match. where: the place of the
    names, for the error."""
    for pattern in unmatched(patterns, names):
        raise ConfigError(f"--tables: {where} has no table {pattern!r}")
    return {name for name in names if is_chosen(name, patterns)}

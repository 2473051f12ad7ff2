"""The file with keys of chosen rows that the request doesn't name.

It is next to the request file, which has the same person's keys, and equally private.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from pgoutput_etl.changes.row_search import RowKey
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.work.erasure.report import OtherKeys
from pgoutput_etl.work.erasure.request import TableErasure, read_tables

_HEAD = "# Keys of rows to erase, which the request does not name: add these to its tables, unless others had them.\n"


@dataclass(frozen=True, slots=True)
class OtherKeysFile:
    """The file that belongs to a request."""

    path: Path

    @classmethod
    def of(cls, request: str) -> OtherKeysFile:
        path = Path(request)
        return cls(path.with_name(f"{path.stem}.other-keys.yaml"))

    def write(self, keys: Mapping[str, Collection[RowKey]]) -> OtherKeys | None:
        """keys: by the table's name; if there are none, the file is deleted. Raises ConfigError."""
        tables = [
            {"table": name, "keys": [{column: _escaped(text) for column, text in key} for key in sorted(own)]}
            for name, own in sorted(keys.items())
        ]
        try:
            if not tables:
                self.path.unlink(missing_ok=True)
                return None
            content = yaml.safe_dump(
                {"tables": tables}, sort_keys=False, allow_unicode=True, width=1 << 20, default_flow_style=None
            )
            replace_file(self.path, _HEAD + content)
        except OSError as error:
            raise ConfigError(f"{self.path}: can't be written: {error.strerror}") from None
        return OtherKeys(str(self.path), tuple((name, len(own)) for name, own in sorted(keys.items())))

    def delete_if_named(self, request: Iterable[TableErasure]) -> None:
        """Deletes the file if the request names all keys in it, so that nothing remains from an earlier erasure. Raises
        ConfigError."""
        if self.path.exists():
            named = {(table.name, frozenset(condition)) for table in request for condition in table.conditions}
            left = {(table.name, frozenset(key)) for table in read_tables(str(self.path)) for key in table.conditions}
            if left <= named:
                self.write({})


def _escaped(text: str) -> str:
    """Escapes a literal ${, which would be a variable in the request."""
    return text.replace("${", "$${")

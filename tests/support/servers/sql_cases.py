"""The cases of tests/cases: SQL whose messages do not say everything, each divided into nights.

Directives, each a line: `-- night` begins another night; `-- server: 18` names the only version that the case is about,
and 16 runs the others; `-- via-root`, `-- generated`: options of the publication; `-- binary`: pgoutput's option;
`-- catalog`: only with catalog Messages; `-- ascii`: a database in the encoding SQL_ASCII; `-- rule: {…}`: an item of
the configuration's `tables`; `-- right: …`: tables that must equal the server's after every night, whatever happens to
the others.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tests.support.judged_targets import JudgedTarget
from tests.support.servers.judged_database import JudgedDatabase, judged_database
from tests.support.servers.postgres import Server, Version
from tests.support.verdicts import Judgment, is_unknown, judge

CASES = Path(__file__).parents[2] / "cases"

_VALUE = re.compile(r"^-- (server|rule|right): (.+)$", re.MULTILINE)
_FLAG = re.compile(r"^-- (via-root|generated|binary|ascii|catalog)$", re.MULTILINE)
_NIGHT = re.compile(r"^-- night$", re.MULTILINE)
_PUBLICATION = {"via-root": "publish_via_partition_root = true", "generated": "publish_generated_columns = stored"}


@dataclass(frozen=True, slots=True)
class SqlCase:
    """rules: the configuration's `tables`, as YAML. right: tables that must always equal the server's."""

    name: str
    nights: tuple[str, ...]
    version: Version
    rules: str
    right: frozenset[str]
    flags: frozenset[str]

    def database(
        self, server: Server, landing: Path, has_catalog: bool = False
    ) -> AbstractContextManager[JudgedDatabase]:
        created = "encoding 'SQL_ASCII' locale 'C' template template0" if "ascii" in self.flags else ""
        publication = ", ".join(_PUBLICATION[flag] for flag in sorted(self.flags & _PUBLICATION.keys()))
        options = {"binary": "true"} if "binary" in self.flags else {}
        given = {"created": created, "publication": publication, **options}
        return judged_database(server, self.name, landing, has_catalog=has_catalog, **given)

    def judged_nights(
        self, server: Server, landing: Path, target: JudgedTarget, has_catalog: bool = False
    ) -> list[dict[str, Judgment]]:
        """The judgments after each night, by schema.table, of the tables that the archive knows. has_catalog: the
        server sends catalog Messages."""
        nights = []
        with self.database(server, landing, has_catalog) as database:
            for statements in self.nights:
                server.psql(statements)
                database.land()
                night = target.night()
                nights.append(judge(night, [table for table in database.tables() if not is_unknown(night, table)]))
        return nights


def read_case(path: Path) -> SqlCase:
    text = path.read_text(encoding="utf-8")
    values: dict[str, list[str]] = {"server": [], "rule": [], "right": []}
    for name, value in _VALUE.findall(text):
        values[name].append(value)
    [version] = values["server"] or ["16"]
    right = frozenset(name for names in values["right"] for name in names.split())
    rules = f"[{', '.join(values['rule'])}]"
    flags = frozenset(_FLAG.findall(text))
    return SqlCase(path.stem, tuple(_NIGHT.split(text)), cast("Version", int(version)), rules, right, flags)


def all_cases() -> list[SqlCase]:
    return [read_case(path) for path in sorted(CASES.glob("*.sql"))]

"""PostgreSQL's own regression SQL as an archive: each file in its own database, in two nights of one psql session.

The files are not part of this repository: POSTGRES_SQL names the folder src/test/regress/sql of PostgreSQL's sources.
Many statements fail, by intent or for want of the regression tests' library.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Timer

from tests.support.judged_targets import JudgedTarget
from tests.support.servers.documented_limits import WATCH, Limits
from tests.support.servers.judged_database import JudgedDatabase, judged_database
from tests.support.servers.postgres import Server
from tests.support.verdicts import Judgment, judge

SETUP = "test_setup.sql"  # creates the tables that many files use
LOGINS = "event_trigger_login.sql"  # each login writes a row, also that of the judge
TEMPLATE = "judged_template"

_PATIENCE = 300.0  # seconds for a night's statements
_ATTEMPTS = 40  # statements after which a session may be outside of a transaction

_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?\*/
      | [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
      | \$((?:[^\W\d]\w*)?)\$.*?\$\1\$
      | \\;|\\[^\n]* | [^\W\d][\w$]* | [();] | .""",
    re.DOTALL | re.VERBOSE,
)
_COPY_DATA = re.compile(r"[^\n]*\n(?:.*?\n)?\\\.(?:\n|\Z)", re.DOTALL)
_COPY = re.compile(r"\bcopy\b.+\bfrom\s+stdin\b", re.IGNORECASE | re.DOTALL)
_ATOMIC = re.compile(r"\bbegin\s+atomic\b(?!.*\bend\s*;$)", re.IGNORECASE | re.DOTALL)


def statements(script: str) -> Iterator[str]:
    """Divides a script of psql where a statement ends outside of \\if. The parts, joined, are the script."""
    start = position = depth = conditions = 0
    while position < len(script):
        match = _TOKEN.match(script, position)
        assert match is not None
        token, position = match.group(), match.end()
        depth = max(depth + (token == "(") - (token == ")"), 0)
        conditions += token.startswith("\\if") - token.startswith("\\endif")
        if token != ";" or depth or conditions or _ATOMIC.search(script, start, position):
            continue
        data = _COPY_DATA.match(script, position) if _COPY.search(script, start, position) else None
        position = position if data is None else data.end()
        yield script[start:position]
        start = position
    yield script[start:]


class PsqlSession:
    """psql in a folder of its own, fed with parts of a script. It continues after errors."""

    def __init__(self, database: JudgedDatabase, sql: Path, folder: Path) -> None:
        self._database, self._marks, self._folder = database, count(), folder
        (folder / "results").mkdir()
        environment = {
            **os.environ,
            "PG_ABS_SRCDIR": str(sql.parent.parent.absolute()),
            "PG_ABS_BUILDDIR": str(folder),
            "PG_LIBDIR": str(database.server.programs.parent / "lib"),
            "PG_DLSUFFIX": ".so",
            "PGTZ": "PST8PDT",
            "PGDATESTYLE": "Postgres, MDY",
        }
        with (folder / "psql.log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(database.server.programs / "psql"), database.server.conninfo, "--no-psqlrc", "--quiet"],
                cwd=folder,
                env=environment,
                encoding="utf-8",
                errors="surrogateescape",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._timer = Timer(_PATIENCE, self._process.kill)

    def feed(self, text: str) -> None:
        """Gives psql time from the first statements on until it pauses or ends."""
        assert self._process.stdin is not None
        if not self._timer.is_alive():
            self._timer = Timer(_PATIENCE, self._process.kill)
            self._timer.start()
        with suppress(BrokenPipeError):  # the script may end psql
            self._process.stdin.write(text)
            self._process.stdin.flush()

    def pause(self, rest: Iterator[str]) -> bool:
        """Waits for everything fed so far. Feeds more statements while a transaction is open; false if it stays open,
        or if the session never comes here."""
        for _ in range(_ATTEMPTS):
            mark = self._folder / f"mark{next(self._marks)}"
            self.feed(f"\n\\! touch '{mark}'\n")
            until = time.monotonic() + 10
            while not mark.exists():
                if self._process.poll() is not None or (time.monotonic() > until and self._is_idle(5)):
                    return False
                time.sleep(0.01)
            if self._is_idle():
                self._timer.cancel()
                self._timer.join()
                return True
            self.feed(next(rest, ""))
        return False

    def _is_idle(self, seconds: int = 0) -> bool:
        """True if no statement runs and no transaction is open, for at least this long."""
        [(busy,)] = self._database.query(
            b"select count(*) from pg_stat_activity where datname = current_database() "
            b"and pid <> pg_backend_pid() and backend_type = 'client backend' "
            b"and (state <> 'idle' or clock_timestamp() < state_change + %d * interval '1 s')" % seconds,
            1,
        )
        return busy == "0"

    def end(self) -> None:
        """Also waits for a server that a statement has crashed."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._timer.cancel()
        self._database.server.wait_until_ready()


@dataclass(frozen=True, slots=True)
class RegressionFile:
    path: Path

    def judged_nights(
        self, server: Server, folder: Path, landing: Path, target: JudgedTarget, has_catalog: bool = False
    ) -> list[dict[str, Judgment]]:
        """The judgments after each night, by schema.table; documented limits are reported ones. One night if the
        session can't be divided. has_catalog: the server sends catalog Messages."""
        script = statements(self.path.read_text(encoding="utf-8", errors="surrogateescape"))
        parts = list(script)
        nights = []
        created = f"template {TEMPLATE} strategy file_copy"
        name = _name_of(self.path)
        with judged_database(server, name, landing, setup=WATCH, created=created, has_catalog=has_catalog) as database:
            session = PsqlSession(database, self.path, folder)
            try:
                rest = iter(parts[len(parts) // 2 :])
                session.feed("".join(parts[: len(parts) // 2]))
                if session.pause(rest):
                    nights.append(_night(database, target))
                session.feed("".join(rest))
            finally:
                session.end()
            nights.append(_night(database, target))
        return nights


def _night(database: JudgedDatabase, target: JudgedTarget) -> dict[str, Judgment]:
    """Tables that are older than the slot are judged once they have a change in the archive."""
    database.land()
    night, limits = target.night(), Limits.found_in(database)
    tables = database.tables(skipped=limits.older - {table.relation.oid for table in night.tables.values()})
    return limits.applied(judge(night, tables), night, tables)


def _name_of(path: Path) -> str:
    return "judged_" + re.sub(r"\W", "_", path.stem.lower())


def create_template(server: Server, folder: Path, sql: Path) -> None:
    """The database that each file begins with. The slots are younger than its tables."""
    server.psql(f"create database {TEMPLATE}")
    server.database = TEMPLATE
    try:
        session = PsqlSession(JudgedDatabase(server, TEMPLATE, folder), sql / SETUP, folder)
        if (sql / SETUP).exists():
            session.feed((sql / SETUP).read_text(encoding="utf-8"))
        session.end()
    finally:
        server.database = "postgres"


def regression_files() -> list[RegressionFile]:
    """Empty without POSTGRES_SQL."""
    folder = os.environ.get("POSTGRES_SQL")
    paths = sorted(Path(folder).glob("*.sql")) if folder else []
    return [RegressionFile(path) for path in paths if path.name not in (SETUP, LOGINS)]

"""Runs the scripts in conf/landing on a server with psql, as a person would."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import printable
from pgoutput_etl.installed_files import LANDING_SCRIPTS, installed_file

_KEY = re.compile(r" *source\.catalog_key, shown once *\n-+\n [0-9a-f]{64}\n\(1 row\)\n")

_ERROR = re.compile(r"(?:ERROR|FATAL|error): +(.*)")


def command(name: str, server: str, **variables: str) -> tuple[str, ...]:
    """psql's command line. server: a URL."""
    given = (word for key, value in variables.items() for word in ("-v", f"{key}={value}"))
    script = installed_file(LANDING_SCRIPTS, name)
    return ("psql", "-X", "-q", "-P", "pager=off", "-d", server, *given, "-f", str(script))


def run_script(words: tuple[str, ...]) -> Iterator[str]:
    """Yields the script's output by line, without the key of catalog Messages. Raises ConfigError and RunError."""
    try:
        done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except FileNotFoundError:
        raise ConfigError("psql is not installed here: install PostgreSQL's client programs") from None
    yield from (printable(line) for line in _KEY.sub("", done.stdout).splitlines() if line.strip())
    if done.returncode:
        found = _ERROR.search(done.stderr)
        why = "" if found is None else f": {printable(found[1])}"
        raise RunError(f"psql failed{why}. To see all of it: {shlex.join(words)}")

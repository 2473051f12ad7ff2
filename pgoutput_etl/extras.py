"""The extras of the installed package (pyproject.toml), and what a user without one is told."""

from __future__ import annotations

import sys

# The extra of modules that jobs import without more ado. Other modules check for theirs.
EXTRA_OF = {"pyspark": "spark", "delta": "spark", "matplotlib": "reports", "psycopg": "postgres"}


def installing(extra: str) -> str:
    """How to install an extra."""
    return f"pip install 'pgoutput-etl[{extra}]'"


def missing_module(program: str, module: str) -> str:
    """What a user is told whose Python lacks a module. It has no extra if the package itself requires it."""
    how = installing(EXTRA_OF.get(module, "spark"))
    return f"{program}: {sys.executable} has no module {module}: {how}, or make demo in a clone"

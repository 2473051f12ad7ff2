"""The extras of the installed package (pyproject.toml), and the message for a user who lacks one."""

from __future__ import annotations

import sys

# The extra for modules that jobs import without a check. Other modules check for their extras themselves.
EXTRA_OF = {"pyspark": "spark", "delta": "spark", "matplotlib": "reports", "psycopg": "postgres"}


def installing(extra: str | None) -> str:
    """How to install an extra or, with None, the package alone."""
    return "pip install pgoutput-etl" if extra is None else f"pip install 'pgoutput-etl[{extra}]'"


def missing_module(program: str, module: str) -> str:
    """The message if a module is missing. A module that belongs to no extra is required by the package itself, also
    where a cluster has its own Spark, beside which the extra would install another one."""
    how = installing(EXTRA_OF.get(module))
    return f"{program}: {sys.executable} has no module {module}: {how}, or make demo in a clone"

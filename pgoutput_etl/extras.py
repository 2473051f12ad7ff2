"""The extras of the installed package (pyproject.toml), and what a user without one is told."""

from __future__ import annotations

# The extra of modules that jobs import without more ado. Other modules check for theirs.
EXTRA_OF = {"pyspark": "spark", "delta": "spark", "matplotlib": "reports", "psycopg": "postgres"}


def installing(extra: str) -> str:
    """How to install an extra."""
    return f"pip install 'pgoutput-etl[{extra}]'"

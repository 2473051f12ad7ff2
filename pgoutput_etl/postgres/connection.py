"""Checks a JDBC URL and reads its login from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgoutput_etl.errors import ConfigError

DRIVER_PACKAGE = "org.postgresql:postgresql:42.7.7"  # of PostgreSQL's JDBC driver

# No search path from the first packet on. Spark asks for the columns of a query, and the driver for types, before a
# session's first statement.
NO_SEARCH_PATH = {"currentSchema": ""}

_PATH = re.compile(r"[?&;]currentSchema\b")

_SECRET = re.compile(r"[?&;](?:password|sslpassword)=|//[^/@]*:[^/@]*@", re.IGNORECASE)


def check_url(url: str) -> None:
    """Raises ConfigError for a URL that is not PostgreSQL's, contains a password, or sets the search path."""
    if not url.startswith("jdbc:postgresql:"):
        raise ConfigError("--jdbc: expected jdbc:postgresql://HOST:PORT/DATABASE")
    if _SECRET.search(url):
        raise ConfigError(
            "--jdbc: everybody on the machine can read a password on a command line: set the environment variable "
            "PGPASSWORD instead"
        )
    if _PATH.search(url):
        raise ConfigError(
            "--jdbc: remove currentSchema from the URL: functions of its schemas would run with this user's rights"
        )


def credentials(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`user`, unless the URL has one, and `password`, from libpq's environment variables."""
    login = {}
    if "PGUSER" in environ and not re.search(r"[?&]user=", url):
        login["user"] = environ["PGUSER"]
    if "PGPASSWORD" in environ:
        login["password"] = environ["PGPASSWORD"]
    return login

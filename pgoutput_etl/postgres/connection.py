"""Checks a JDBC URL and reads its login from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgoutput_etl.errors import ConfigError

DRIVER_PACKAGE = "org.postgresql:postgresql:42.7.7"  # of PostgreSQL's JDBC driver

_SECRET = re.compile(r"[?&;](?:password|sslpassword)=|//[^/@]*:[^/@]*@", re.IGNORECASE)


def check_url(url: str) -> None:
    """Raises ConfigError for a URL that is not PostgreSQL's or that contains a password."""
    if not url.startswith("jdbc:postgresql:"):
        raise ConfigError("--jdbc: expected jdbc:postgresql://HOST:PORT/DATABASE")
    if _SECRET.search(url):
        raise ConfigError(
            "--jdbc: everybody on the machine can read a password on a command line: set the environment variable "
            "PGPASSWORD instead"
        )


def without_search_path(url: str) -> str:
    """The URL of connections whose search path is empty from the first packet on, whatever else the URL, the database,
    or the user sets: Spark asks for the columns of a query, and the driver for types, before a session's first
    statement. As a property, Spark would pass it on in lower case, which the driver ignores."""
    return f"{url}{'&' if '?' in url else '?'}currentSchema="


def credentials(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`user`, unless the URL has one, and `password`, from libpq's environment variables."""
    login = {}
    if "PGUSER" in environ and not re.search(r"[?&]user=", url):
        login["user"] = environ["PGUSER"]
    if "PGPASSWORD" in environ:
        login["password"] = environ["PGPASSWORD"]
    return login

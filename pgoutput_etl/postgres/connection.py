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


_OPTIONS = re.compile(r"(?<=[?&])options=([^&]*)")


def guarded(url: str) -> str:
    """The URL of connections that have an empty search path and no row-level security from their first packet on,
    whatever else the URL, the database, or the user sets: Spark asks for the columns of a query, and the driver for
    types, before a session's first statement, and planning calls functions. The URL's own options stay. As properties,
    Spark would pass these on in lower case, which the driver ignores.
    """
    own = "".join(f"{options}%20" for options in _OPTIONS.findall(url))
    return f"{url}{'&' if '?' in url else '?'}options={own}-c%20row_security%3Doff&currentSchema="


def credentials(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`user`, unless the URL has one, and `password`, from libpq's environment variables."""
    login = {}
    if "PGUSER" in environ and not re.search(r"[?&]user=", url):
        login["user"] = environ["PGUSER"]
    if "PGPASSWORD" in environ:
        login["password"] = environ["PGPASSWORD"]
    return login

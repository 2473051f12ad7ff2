"""Checks a JDBC URL and finds the login for it in the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgoutput_etl.errors import ConfigError

_SECRET = re.compile(r"[?&;](?:password|sslpassword)=|//[^/@]*:[^/@]*@", re.IGNORECASE)


def check_url(url: str) -> None:
    """Raises ConfigError for what is no server's, or has a password."""
    if not url.startswith("jdbc:postgresql:"):
        raise ConfigError("--jdbc: expected jdbc:postgresql://HOST:PORT/DATABASE")
    if _SECRET.search(url):
        raise ConfigError(
            "--jdbc: a password on a command line can be read by everybody on the machine: put it into "
            "PGPASSWORD in the environment"
        )


def credentials(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`user` and `password`, from libpq's variables; what the URL says itself isn't said again."""
    found = {}
    if "PGUSER" in environ and not re.search(r"[?&]user=", url):
        found["user"] = environ["PGUSER"]
    if "PGPASSWORD" in environ:
        found["password"] = environ["PGPASSWORD"]
    return found

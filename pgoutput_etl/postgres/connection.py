"""Checks a server's URL, translates JDBC's to libpq's, and reads JDBC's login from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

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


# Parameters of PostgreSQL's JDBC driver that libpq has, too
_LIBPQ: Mapping[str, str | None] = {
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    **dict.fromkeys(("user", "options", "sslmode", "sslrootcert", "sslcert", "sslkey")),
}

# The driver's, which change neither the server nor the rows
_OF_DRIVER = frozenset(
    (
        *("assumeMinServerVersion", "binaryTransfer", "currentSchema", "defaultRowFetchSize", "loginTimeout"),
        *("preferQueryMode", "prepareThreshold", "readOnly", "reWriteBatchedInserts", "socketTimeout"),
        *("stringtype", "tcpKeepAlive"),
    )
)


def server_url(text: str) -> str:
    """libpq's URL of a server, from one or from JDBC's. Raises ConfigError for a URL that is not PostgreSQL's, contains
    a password, or has parameters that libpq doesn't have."""
    is_jdbc = text.startswith("jdbc:")
    try:
        url = urlsplit(text.removeprefix("jdbc:"), allow_fragments=False)
        parameters, password = dict(parse_qsl(url.query, keep_blank_values=True)), url.password
    except ValueError:
        url, parameters, password = urlsplit(""), {}, None
    if url.scheme not in ("postgresql", "postgres") or not (is_jdbc or "://" in text):
        raise ConfigError("--server: expected postgresql://HOST:PORT/DATABASE, or JDBC's URL of the server")
    if password is not None or not {"password", "sslpassword"}.isdisjoint(parameters):
        raise ConfigError(
            "--server: everybody on the machine can read a password on a command line: set the environment variable "
            "PGPASSWORD instead"
        )
    return _translated(url.netloc, url.path, parameters) if is_jdbc else text


def _translated(hosts: str, path: str, given: dict[str, str]) -> str:
    """JDBC's ssl=true checks the server's certificate and name, as sslmode=verify-full does."""
    parameters = {name: value for name, value in given.items() if name not in _OF_DRIVER}
    if parameters.pop("ssl", "false").lower() in ("true", ""):
        parameters.setdefault("sslmode", "verify-full")
    unknown = sorted(parameters.keys() - _LIBPQ)
    if unknown:
        raise ConfigError(f"--jdbc: libpq has no parameter {unknown[0]}: use --server with a libpq URL")
    renamed = {_LIBPQ[name] or name: value for name, value in parameters.items()}
    query = f"?{urlencode(renamed, quote_via=quote, safe='')}" if renamed else ""
    return f"postgresql://{hosts or 'localhost'}/{path.lstrip('/')}{query}"

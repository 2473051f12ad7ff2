"""Checks a server's URL, and translates JDBC URLs to libpq's."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pgoutput_etl.errors import ConfigError

# Parameters of PostgreSQL's JDBC driver that libpq has, too
_LIBPQ: Mapping[str, str | None] = {
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    **dict.fromkeys(("user", "options", "sslmode", "sslrootcert", "sslcert", "sslkey")),
}

# Parameters of the driver that affect neither the server nor the rows
_OF_DRIVER = frozenset(
    (
        *("assumeMinServerVersion", "binaryTransfer", "currentSchema", "defaultRowFetchSize", "loginTimeout"),
        *("preferQueryMode", "prepareThreshold", "readOnly", "reWriteBatchedInserts", "socketTimeout"),
        *("stringtype", "tcpKeepAlive"),
    )
)


def server_url(text: str) -> str:
    """libpq's URL of a server, given a libpq or JDBC URL. Raises ConfigError for a URL that isn't PostgreSQL's,
    contains a password, or has parameters that libpq doesn't have."""
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
    """JDBC's ssl=true checks the server's certificate and name, like sslmode=verify-full."""
    parameters = {name: value for name, value in given.items() if name not in _OF_DRIVER}
    if parameters.pop("ssl", "false").lower() in ("true", ""):
        parameters.setdefault("sslmode", "verify-full")
    unknown = sorted(parameters.keys() - _LIBPQ)
    if unknown:
        raise ConfigError(f"--jdbc: libpq has no parameter {unknown[0]}: use --server with a libpq URL")
    renamed = {_LIBPQ[name] or name: value for name, value in parameters.items()}
    query = f"?{urlencode(renamed, quote_via=quote, safe='')}" if renamed else ""
    return f"postgresql://{hosts or 'localhost'}/{path.lstrip('/')}{query}"

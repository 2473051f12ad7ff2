"""The URL of a server, for libpq and for JDBC."""

from __future__ import annotations

import pytest

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.postgres.connection import server_url


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("jdbc:postgresql:shop", "postgresql://localhost/shop"),
        ("jdbc:postgresql:/", "postgresql://localhost/"),
        ("jdbc:postgresql://h1:1,h2:2/d?user=a%20b", "postgresql://h1:1,h2:2/d?user=a%20b"),
        ("jdbc:postgresql://[::1]:5432/d?ssl", "postgresql://[::1]:5432/d?sslmode=verify-full"),
        ("jdbc:postgresql://h/d?ssl=true&sslmode=require", "postgresql://h/d?sslmode=require"),
        ("jdbc:postgresql://h/d?ssl=false&sslrootcert=/a/b", "postgresql://h/d?sslrootcert=%2Fa%2Fb"),
        (
            "jdbc:postgresql://h/d?sslcert=c&sslkey=k&currentSchema=p&prepareThreshold=0&ApplicationName=etl",
            "postgresql://h/d?sslcert=c&sslkey=k&application_name=etl",
        ),
        ("jdbc:postgresql://h/d?options=-c+a%3Db", "postgresql://h/d?options=-c%20a%3Db"),
        ("postgresql:///shop?host=/run", "postgresql:///shop?host=/run"),
        ("postgres://etl@db", "postgres://etl@db"),
    ],
)
def test_a_url_is_libpqs_or_becomes_libpqs(given: str, url: str) -> None:
    assert server_url(given) == url


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a", "expected postgresql://HOST:PORT/DATABASE"),
        ("postgresql:shop", "expected postgresql://HOST:PORT/DATABASE"),
        ("jdbc:mysql://db", "expected postgresql://HOST:PORT/DATABASE"),
        ("postgresql://[::1/d", "expected postgresql://HOST:PORT/DATABASE"),
        ("postgresql://etl:SECRET@db/shop", "set the environment variable PGPASSWORD"),
        ("postgresql://db/shop?pass%77ord=SECRET", "set the environment variable PGPASSWORD"),
        ("jdbc:postgresql://db/shop?sslpassword=SECRET", "set the environment variable PGPASSWORD"),
        ("jdbc:postgresql://db/shop?sslfactory=org.example.SECRET", "--jdbc: libpq has no parameter sslfactory"),
    ],
)
def test_other_urls_and_passwords_are_refused(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        server_url(given)
    assert "SECRET" not in str(refused.value)

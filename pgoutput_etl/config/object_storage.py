"""Storage that is accessed without Spark: translates Spark's s3a settings to options for delta-rs and Arrow."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from pgoutput_etl.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_S3 = ("s3", "s3a", "s3n")

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

# So that an unreachable store is reported within seconds.
_RETRIES = {"max_retries": "2", "retry_timeout": "15s", "timeout": "20s", "connect_timeout": "5s"}

_COLORS = re.compile(r"\x1b\[[0-9;]*m")

_LEAST_SECRET = 4  # minimum characters of a text to hide


@dataclass(frozen=True, slots=True)
class StorageFolder:
    """A folder, file, or glob, as both libraries need it. path: on this machine, or bucket and key. s3: None for a
    local path."""

    path: str
    s3: S3Settings | None = None

    @property
    def delta_url(self) -> str:
        return self.path if self.s3 is None else f"s3://{self.path}"

    @property
    def delta_options(self) -> dict[str, str]:
        return {} if self.s3 is None else self.s3.delta_options


@dataclass(frozen=True, slots=True)
class S3Settings:
    """None for settings that the configuration leaves to the environment: its variables, or a machine's role."""

    endpoint: str | None = None
    region: str | None = None
    path_style: bool = False
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, spark: Mapping[str, str], bucket: str) -> S3Settings:
        """spark: Spark's settings; those for a bucket take precedence, as in s3a."""

        def setting(name: str) -> str | None:
            keys = (f"spark.hadoop.fs.s3a.bucket.{bucket}.{name}", f"spark.hadoop.fs.s3a.{name}")
            return next((spark[key] for key in keys if spark.get(key)), None)

        endpoint = setting("endpoint")
        if endpoint is not None and "://" not in endpoint:
            is_plain = (setting("connection.ssl.enabled") or "true").lower() == "false"
            endpoint = f"{'http' if is_plain else 'https'}://{endpoint}"
        return cls(
            endpoint,
            setting("endpoint.region"),
            (setting("path.style.access") or "false").lower() == "true",
            setting("access.key"),
            setting("secret.key"),
            setting("session.token"),
        )

    @property
    def delta_options(self) -> dict[str, str]:
        options = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": self.region or (None if _region() or self.endpoint is None else "us-east-1"),
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_SESSION_TOKEN": self.session_token,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": None if self.endpoint is None else str(not self.path_style).lower(),
            "AWS_ALLOW_HTTP": "true" if (self.endpoint or "").startswith("http://") else None,
        }
        return {name: value for name, value in options.items() if value is not None} | _RETRIES

    def file_system(self, bucket: str) -> FileSystem:
        from pyarrow.fs import S3FileSystem, resolve_s3_region

        region = self.region or _region()
        if region is None:
            region = "us-east-1" if self.endpoint is not None else resolve_s3_region(bucket)
        return S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            session_token=self.session_token,
            region=region,
            endpoint_override=self.endpoint,
            force_virtual_addressing=self.endpoint is not None and not self.path_style,
            connect_timeout=5,
            request_timeout=20,
        )


def _region() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def place_of(url: str, spark: Mapping[str, str], key: str) -> StorageFolder:
    """The folder at a URL. key: the configuration's, for the ConfigError about storage that can't be read without
    Spark."""
    match = _SCHEME.match(url)
    if match is None:
        return StorageFolder(url)
    scheme = match[1].lower()
    if scheme == "file":
        return StorageFolder(unquote("/" + url[len("file:") :].lstrip("/")))
    path = "/" + url[len("dbfs:") :].lstrip("/")
    if scheme == "dbfs" and path.startswith("/Volumes/"):  # which Databricks mounts
        return StorageFolder(path)
    if scheme in _S3:
        parts = urlsplit(url)
        return StorageFolder(
            f"{parts.netloc}/{url.partition('://')[2].partition('/')[2]}", S3Settings.of(spark, parts.netloc)
        )
    raise ConfigError(
        f"{key}: {scheme}:// can't be read without Spark, only local paths, Databricks volumes and S3. Monitor the "
        "metrics of jobs/apply.py instead"
    )


def without_secrets(text: str, place: StorageFolder) -> str:
    """A library's error in one line, without colors and secrets."""
    settings = place.s3 or S3Settings()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    secrets = [settings.access_key, settings.secret_key, settings.session_token, *map(os.environ.get, names)]
    for secret in secrets:
        if secret and len(secret) >= _LEAST_SECRET:
            text = text.replace(secret, "***")
    return " ".join(_COLORS.sub("", text).split())[:300]

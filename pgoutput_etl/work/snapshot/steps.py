"""The commands of an initial load for one server and one configuration, ready to paste into a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from posixpath import join

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.config.settings import Config
from pgoutput_etl.postgres.queries import RECEIVER_ENVIRONMENT, identifier, literal
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.work.snapshot.request import SnapshotRequest

_SPECIAL = re.compile(r'["$`\\!]')  # special within double quotes

# Parameters of a URL that choose the server
_ADDRESS = ("host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts")

DEFAULT_NAME = "etl"  # name of slot and publication, as in conf/landing/setup.sql

# pgoutput's protocol version and options by server version, newest first
_PROTOCOLS = (
    (160_000, 4, ("streaming=parallel", "messages=true")),
    (150_000, 3, ("streaming=on", "messages=true")),
    (140_000, 2, ("streaming=on", "messages=true")),
    (0, 1, ()),
)


@dataclass(frozen=True, slots=True)
class LoadStep:
    """A command to run, with a text that explains it."""

    text: str
    command: str


@dataclass(frozen=True, slots=True)
class Commands:
    """Makes the commands for a snapshot. version: the server's server_version_num."""

    config: Config
    request: SnapshotRequest
    version: int
    is_standby: bool = False

    def as_superuser(self, text: str, statement: str, is_setting: bool = False) -> LoadStep:
        """A standby can't run the statement, unless it is a setting of its own: the command for it has PRIMARY in place
        of the server's address."""
        elsewhere = self.is_standby and not is_setting
        place, _, parameters = self.request.url.partition("?")
        address, host, omitted = ("//[^/]*", "//PRIMARY", _ADDRESS) if elsewhere else ("//[^/@]*@", "//", ())
        others = "&".join(p for p in parameters.split("&") if p.partition("=")[0] not in ("user", *omitted))
        url = f"{re.sub(address, host, place)}{'?' if others else ''}{others}"
        text = f"on the primary, {text}" if elsewhere else text
        return LoadStep(text, _line("psql", "-U", "postgres", url, "-c", statement))

    def _as_user(self, statement: str) -> str:
        return _line("psql", self.request.url, "-c", statement)

    def create_slot(self, name: str) -> str:
        return self._as_user(f"SELECT pg_catalog.pg_create_logical_replication_slot({literal(name)}, 'pgoutput')")

    def drop_slot(self, name: str) -> str:
        return self._as_user(f"SELECT pg_catalog.pg_drop_replication_slot({literal(name)})")

    def receive(self, slot: str, publications: Sequence[str]) -> LoadStep:
        landing, source = self.config.source.landing, self.config.source.name
        if self.config.source.framing is Framing.PGCOPY:
            return LoadStep(
                "land the slot's changes: docs/landing.md has the timer",
                "sudo systemctl enable --now pg-landing-copy@shop.timer",
            )
        _, protocol, others = next(row for row in _PROTOCOLS if self.version >= row[0])
        names = ",".join(identifier(name) for name in publications)
        options = [f"proto_version={protocol}", f"publication_names={names}", *others]
        is_folder = "://" not in landing and not re.search(r"[*?\[{]", landing)
        file = join(landing, f"{source}-0000001.bin") if is_folder else f"{source}-0000001.bin"
        given = [word for option in options for word in ("-o", option)]
        environment = (f"{name}={value}" for name, value in RECEIVER_ENVIRONMENT.items())
        receiver = ("pg_recvlogical", "-d", self.request.url, "--slot", slot, *given, "--start", "-f", file)
        line = _line("env", *environment, *receiver)
        where = "" if is_folder else f" and copy its file to {landing}"
        return LoadStep(f"start landing{where}; docs/landing.md makes it a service with rotation", line)

    def snapshot(self, slot: str) -> LoadStep:
        request = self.request
        options = ["--tables", ",".join(request.tables), "--server", request.url, "--slot", slot]
        options += ["--publications", ",".join(request.publications)] if request.publications else []
        return LoadStep("load the rows from before the slot", job_line(self.config, "snapshot", *options))

    def apply(self) -> LoadStep:
        return LoadStep("apply the changes since, now and regularly", job_line(self.config, "apply"))


def _line(*words: str) -> str:
    """A shell command line; SQL with apostrophes stays readable."""
    return " ".join(f'"{word}"' if "'" in word and not _SPECIAL.search(word) else shlex.quote(word) for word in words)

"""Receivers that die repeatedly during a workload, and the files that they leave."""

from __future__ import annotations

import bz2
import gzip
import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Framing, frames, stands_in_stream
from pgoutput_etl.protocol.messages import (
    Commit,
    CommitPrepared,
    Prepare,
    RollbackPrepared,
    StreamCommit,
    StreamPrepare,
)
from tests.support.servers.postgres import Server
from tests.support.servers.walsender_client import WalsenderClient, WalsenderGoneError
from tests.support.servers.workload import Workload

SLOT = "archive"
_PATIENCE = {"wal_sender_timeout": "60s"}
_IMPATIENCE = {"wal_sender_timeout": "200ms"}  # requests a confirmation every 100 ms; otherwise it comes once a second
_TIMEOUT = 20.0  # seconds


@dataclass(frozen=True, slots=True)
class Reception:
    """pgoutput's options for a slot, and the framing of the files."""

    options: Mapping[str, str]
    framing: Framing = Framing.RECVLOGICAL
    torn: bool = True  # unconfirmed bytes may end in the middle of a message

    @property
    def two_phase(self) -> bool:
        return int(self.options["proto_version"]) >= 3


@dataclass(slots=True)
class Receivers:
    """One slot's receivers, one after another, and their landing folder. events: counts how they ended, and others."""

    server: Server
    workload: Workload
    reception: Reception
    landing: Path
    chance: random.Random
    events: Counter[str] = field(default_factory=Counter)
    _files: int = 0
    _life_began_at: int = 0

    def __post_init__(self) -> None:
        self.server.create_slot(SLOT, two_phase=self.reception.two_phase)

    @property
    def current(self) -> Path:
        return self.landing.with_name("current")

    def life(self, steps: int) -> None:
        """A receiver starts, continues an existing file, and ends in a random way."""
        self._wait_for_slot()
        self._life_began_at = self.current.stat().st_size if self.current.exists() else 0
        self.events["lives"] += 1
        if self.reception.framing is Framing.RECVLOGICAL:
            self._life_of_recvlogical(steps)
        else:
            self._life_of_client(steps)
        self._wait_for_slot()
        if self.current.exists() and self.chance.random() < 0.7:
            self._lose_the_end()
        if self.chance.random() < 0.3:
            self._land()

    def receive_the_rest(self) -> None:
        """Receives everything up to the server's current LSN, and lands all files."""
        self._wait_for_slot()
        end = self.server.current_lsn()
        if self.reception.framing is Framing.RECVLOGICAL:
            receiver = self._start_recvlogical("--no-loop", "--endpos", end, settings=_PATIENCE)
            assert receiver.wait(120) == 0, self.current.with_name("current.log").read_text()
        else:
            with self._client() as client, self.current.open("ab") as file:
                until = time.monotonic() + 120
                while client.received_lsn < parse_lsn(end):
                    assert time.monotonic() < until, "the rest was not received"
                    for frame in client.frames(0.05):
                        file.write(self._framed(frame))
        self._land()

    # pg_recvlogical

    def _life_of_recvlogical(self, steps: int) -> None:
        confirms = self.chance.random() < 0.6
        receiver = self._start_recvlogical(
            "--no-loop",
            *("-F", "0" if confirms else "10", "-s", "1"),
            settings=_IMPATIENCE if confirms else _PATIENCE,
        )
        try:
            self._wait_until(lambda: receiver.poll() is not None or self._is_active())
            rotates_at = self.chance.randrange(steps) if self.chance.random() < 0.5 else -1
            for step in range(steps):
                self.workload.step()
                self._pause()
                if step == rotates_at and receiver.poll() is None:
                    self._rotate(receiver)
            self._end(receiver)
        finally:
            if receiver.poll() is None:
                receiver.kill()
            receiver.wait()

    def _start_recvlogical(self, *arguments: str, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
        options = dict(self.reception.options)
        version, names = int(options.pop("proto_version")), [options.pop("publication_names").strip('"')]
        return self.server.start_recvlogical(
            SLOT, self.current, *arguments, publications=names, proto_version=version, settings=settings, **options
        )

    def _end(self, receiver: subprocess.Popen[bytes]) -> None:
        way = self.chance.choices(["killed", "interrupted", "terminated", "crashed", "stopped"], [8, 3, 3, 0.5, 1])[0]
        if way == "crashed" and self.events["crashed"]:
            way = "killed"
        self.events[way] += 1
        match way:
            case "killed":
                receiver.kill()
            case "interrupted":
                receiver.send_signal(signal.SIGINT)
            case "terminated":
                self._to_walsender("select pg_terminate_backend(active_pid)")
            case "crashed":
                self._crash_walsender()
            case _:  # stopped until the server gives up on it
                receiver.send_signal(signal.SIGSTOP)
                time.sleep(0.4)
                receiver.send_signal(signal.SIGCONT)
                receiver.kill()
        receiver.wait(_TIMEOUT)

    def _rotate(self, receiver: subprocess.Popen[bytes]) -> None:
        """Renames the file, signals pg_recvlogical to open a new one, and lands the renamed file."""
        if not self.current.exists():
            return
        renamed = self.current.with_name("renamed")
        self.current.rename(renamed)
        receiver.send_signal(signal.SIGHUP)
        self._wait_until(lambda: receiver.poll() is not None or self.current.exists())
        if not self.current.exists():  # it died first
            renamed.rename(self.current)
            return
        self.events["rotated"] += 1
        self._life_began_at = 0
        self._land(renamed)

    # The tests' own receiver

    def _client(self) -> WalsenderClient:
        return WalsenderClient(self.server, SLOT, self.reception.options)

    def _life_of_client(self, steps: int) -> None:
        confirms = self.chance.random() < 0.6
        with self._client() as client:
            file = self.current.open("ab")
            try:
                for _ in range(steps):
                    self.workload.step()
                    for frame in client.frames(self.chance.random() * 0.02):
                        file.write(self._framed(frame))
                    file.flush()
                    if confirms and self.chance.random() < 0.3:
                        client.confirm(client.received_lsn)
                    if self.chance.random() < 0.05:
                        file.close()
                        self._land()
                        self._life_began_at = 0
                        file = self.current.open("ab")
                self._end_client()
                if self.reception.torn and self.reception.framing is Framing.COPYDATA:
                    partial = client.partial_frame
                    file.write(partial[: self.chance.randint(0, len(partial))])
            except (WalsenderGoneError, OSError):
                self.events["disconnected"] += 1
            finally:
                file.close()

    def _end_client(self) -> None:
        way = self.chance.choices(["killed", "terminated", "crashed"], [8, 3, 0.5])[0]
        if way == "crashed" and self.events["crashed"]:
            way = "killed"
        self.events[way] += 1
        if way == "terminated":
            self._to_walsender("select pg_terminate_backend(active_pid)")
        elif way == "crashed":
            self._crash_walsender()

    def _framed(self, frame: bytes) -> bytes:
        if self.reception.framing is Framing.COPYDATA:
            return frame
        message = frame[5 + 25 :] if frame[5:6] == b"w" else b""
        return len(message).to_bytes(4, "big") + message if message else b""

    # Both

    def _crash_walsender(self) -> None:
        """Kills the walsender. The server restarts with the slot's state at the last checkpoint."""
        with self.server.connect() as connection:
            row = connection.execute(
                "select active_pid from pg_replication_slots where slot_name = %s", (SLOT,)
            ).fetchone()
        if row is not None and row[0] is not None:
            os.kill(row[0], signal.SIGKILL)
            time.sleep(0.1)
            self.server.wait_until_ready()

    def _to_walsender(self, statement: str) -> None:
        with self.server.connect() as connection:
            connection.execute(f"{statement} from pg_replication_slots where slot_name = %s".encode(), (SLOT,))

    def _is_active(self) -> bool:
        with self.server.connect() as connection:
            row = connection.execute("select active from pg_replication_slots where slot_name = %s", (SLOT,)).fetchone()
        return bool(row and row[0])

    def _wait_for_slot(self) -> None:
        """Waits until the slot is inactive, as a walsender takes a while to notice that its receiver is gone."""
        self.server.wait_until_ready()
        if self._is_active():
            self._to_walsender("select pg_terminate_backend(active_pid)")
            self._wait_until(lambda: not self._is_active())

    def _wait_until(self, happened: Callable[[], bool]) -> None:
        until = time.monotonic() + _TIMEOUT
        while not happened():
            assert time.monotonic() < until, f"waited too long: {dict(self.events)}"
            time.sleep(0.002)

    def _pause(self) -> None:
        if self.chance.random() < 0.4:
            time.sleep(self.chance.random() * 0.03)

    def _lose_the_end(self) -> None:
        """Truncates unconfirmed bytes of the last receiver, as a crash of its machine would."""
        data = self.current.read_bytes()
        message_ends, confirmed = _ends(data, self.reception.framing, self._life_began_at, self._confirmed())
        if self.reception.torn:
            size = self.chance.randint(confirmed, len(data))
        else:
            size = self.chance.choice([end for end in message_ends if end >= confirmed] or [confirmed])
        if size < len(data):
            self.events["torn" if size not in message_ends else "shortened"] += 1
            self.events["bytes lost"] += len(data) - size
            os.truncate(self.current, size)

    def _confirmed(self) -> int:
        with self.server.connect() as connection:
            row = connection.execute(
                "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", (SLOT,)
            ).fetchone()
        assert row is not None
        return parse_lsn(str(row[0]))

    def _land(self, file: Path | None = None) -> None:
        """Lands the file under the next name, with a random compression."""
        file = file or self.current
        if not file.exists():
            return
        suffix = self.chance.choice(["", "", ".gz", ".zst", ".bz2", ".lz4"])
        landed = self.landing / f"{self._files:05}.bin{suffix}"
        self._files += 1
        self._compress(file, landed)
        file.unlink()

    def _compress(self, file: Path, landed: Path) -> None:
        match landed.suffix:
            case ".gz":
                landed.write_bytes(gzip.compress(file.read_bytes(), 1))
            case ".bz2":
                landed.write_bytes(bz2.compress(file.read_bytes(), 1))
            case ".zst" | ".lz4" as suffix:
                codec = {".zst": "zstd", ".lz4": "lz4"}[suffix]
                with pa.OSFile(str(landed), "wb") as sink, pa.CompressedOutputStream(sink, codec) as compressed:
                    compressed.write(file.read_bytes())
            case _:
                shutil.copyfile(file, landed)


def run_killed_receivers(
    server: Server, chance: random.Random, reception: Reception, landing: Path, lives: int
) -> Receivers:
    """Runs a random workload while receivers start and die. In the end, all changes are landed."""
    workload = Workload(server, chance, prepares=reception.two_phase)
    workload.create()
    receivers = Receivers(server, workload, reception, landing, chance)
    for _ in range(lives):
        receivers.life(chance.choice([5, 15, 40]))
        for _ in range(chance.choice([0, 0, 5])):
            workload.step()
    workload.close()
    receivers.receive_the_rest()
    return receivers


def _ends(data: bytes, framing: Framing, start: int, confirmed: int) -> tuple[list[int], int]:
    """The ends of complete messages since `start`, and the end of the confirmed part, which is not sent again."""
    tries = [_ends_from(data, framing, start, confirmed, in_stream) for in_stream in (False, True)]
    return max(tries, key=lambda ends: ends[0][-1])


def _ends_from(data: bytes, framing: Framing, start: int, confirmed: int, in_stream: bool) -> tuple[list[int], int]:
    ends, confirmed_end = [start], start
    try:
        for frame in frames(data, framing, in_stream, start):
            message = decode(data[frame.start : frame.end], in_stream)
            ends.append(frame.next)
            match message:
                case Commit(end_lsn=lsn) | StreamCommit(end_lsn=lsn) | CommitPrepared(end_lsn=lsn):
                    confirmed_end = frame.next if lsn <= confirmed else confirmed_end
                case Prepare(end_lsn=lsn) | StreamPrepare(end_lsn=lsn) | RollbackPrepared(rollback_end_lsn=lsn):
                    confirmed_end = frame.next if lsn <= confirmed else confirmed_end
                case _:
                    pass
            in_stream = stands_in_stream(data[frame.start], in_stream)
    except ArchiveError:
        pass
    return ends, confirmed_end

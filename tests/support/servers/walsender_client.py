"""A receiver that returns the walsender's messages unchanged: the replication protocol over the server's Unix socket.

Source: PostgreSQL documentation, "Message Flow" (Start-up) and "Streaming Replication Protocol" (START_REPLICATION,
Standby status update).
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from types import TracebackType

from tests.support.servers.postgres import Server

_HEAD = struct.Struct(">cI")
_RECEIVED_AT_ONCE = 1 << 14


class WalsenderGoneError(Exception):
    """The server ended the connection."""


class WalsenderClient:
    """Receives from a slot. pid: the walsender's. Confirms only what the caller confirms."""

    def __init__(
        self,
        server: Server,
        slot: str,
        options: Mapping[str, str],
        lsn: str = "0/0",
        database: str = "postgres",
    ) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._buffer = b""
        self.pid = 0
        self.received_lsn = 0  # everything up to this LSN has been received
        try:
            self._start(server, slot, options, lsn, database)
        except BaseException:
            self._socket.close()
            raise

    def _start(self, server: Server, slot: str, options: Mapping[str, str], lsn: str, database: str) -> None:
        self._socket.connect(str(server.folder / f".s.PGSQL.{server.port}"))
        settings = f"user\0postgres\0database\0{database}\0replication\0database\0\0".encode()
        self._socket.sendall(struct.pack(">II", 8 + len(settings), 3 << 16) + settings)
        self._wait_for(b"Z")
        plugin_options = ", ".join(f"{name} '{value}'" for name, value in options.items())
        query = f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn} ({plugin_options})'.encode() + b"\0"
        self._socket.sendall(b"Q" + struct.pack(">I", 4 + len(query)) + query)
        self._wait_for(b"W")

    def __enter__(self) -> WalsenderClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def frames(self, seconds: float) -> Iterator[bytes]:
        """The complete CopyData frames that arrive within this time. Raises WalsenderGoneError."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            while (frame := self._next_frame()) is not None:
                yield frame
            if select.select([self._socket], [], [], left)[0]:
                self._receive()

    @property
    def partial_frame(self) -> bytes:
        """The received bytes of an incomplete frame."""
        return self._buffer

    def confirm(self, lsn: int) -> None:
        """Send a Standby status update: written, flushed, and applied up to `lsn`."""
        body = struct.pack(">cQQQqB", b"r", lsn, lsn, lsn, 0, 0)
        self._socket.sendall(b"d" + struct.pack(">I", 4 + len(body)) + body)

    def _wait_for(self, expected: bytes) -> None:
        while True:
            while (message := self._next_message()) is not None:
                kind, body = message[:1], message[5:]
                if kind == b"E":
                    raise WalsenderGoneError(body.decode(errors="replace"))
                if kind == b"K":
                    self.pid = struct.unpack_from(">I", body)[0]
                if kind == expected:
                    return
            self._receive()

    def _next_frame(self) -> bytes | None:
        message = self._next_message()
        if message is None:
            return None
        if message[:1] != b"d":
            raise WalsenderGoneError(f"{message[:1]!r} from the walsender: {message[5:].decode(errors='replace')}")
        kind = message[5:6]
        (lsn,) = struct.unpack_from(">Q", message, 6)
        self.received_lsn = max(self.received_lsn, lsn)
        if kind == b"k" and message[-1]:
            self.confirm(0)  # the server requests a reply; 0 confirms nothing
        return message

    def _next_message(self) -> bytes | None:
        if len(self._buffer) < _HEAD.size:
            return None
        size = 1 + _HEAD.unpack_from(self._buffer)[1]
        if len(self._buffer) < size:
            return None
        message, self._buffer = self._buffer[:size], self._buffer[size:]
        return message

    def _receive(self) -> None:
        received = self._socket.recv(_RECEIVED_AT_ONCE)
        if not received:
            raise WalsenderGoneError("the server closed the connection")
        self._buffer += received

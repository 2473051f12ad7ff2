"""An S3 server as a process: `python -m tests.support.s3_server` prints its port, and serves until its input ends.

moto answers the requests. A wrapper, the Door, counts them and serializes writes, as S3 orders concurrent writes. A PUT
of JSON to /_door makes two writers meet, or turns conditional writes off; a GET of /_door returns the counts.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

DOOR = "/_door"
_MEET_WITHIN = 120  # seconds

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]


@dataclass
class Door:
    """meet: a pattern of "METHOD /bucket/key"; the first two matching requests wait for each other, and are then
    answered one after the other. conditional: False ignores If-None-Match."""

    inside: Application
    meet: str | None = None
    conditional: bool = True
    counts: Counter[str] = field(default_factory=Counter)
    waiting: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    writing: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == DOOR:
            return self._control(environ, start_response)
        with self.writing:
            self.counts[_kind(method, environ.get("QUERY_STRING", ""))] += 1
        if method in ("GET", "HEAD"):
            return self.inside(environ, start_response)
        self._meet(f"{method} {path}")
        if not self.conditional:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with self.writing:
            return self.inside(environ, start_response)

    def _meet(self, request: str) -> None:
        if self.meet is not None and re.search(self.meet, request):
            self.waiting.wait(_MEET_WITHIN)
            self.meet = None

    def _control(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "PUT":
            body = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
            self.meet, self.conditional = body["meet"], body["conditional"]
            self.waiting.reset()
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(self.counts).encode()]


def _kind(method: str, query: str) -> str:
    parameters = parse_qs(query, keep_blank_values=True)
    if method == "GET" and ("list-type" in parameters or "uploads" in parameters):
        return "LIST"
    return method


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    class Quiet(MotoRequestHandler):
        def log_request(self, *_: object) -> None:
            pass

    door = Door(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()

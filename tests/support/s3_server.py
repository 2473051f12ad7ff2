"""An S3 server as a process: `python -m tests.support.s3_server` prints its port, and serves until its input ends.

moto answers the requests. A wrapper, the Door, records them and serializes writes, as S3 orders concurrent writes. A
PUT of JSON to /_door makes two writers meet, turns conditional writes off, or delays the answers; a GET of /_door
returns the requests and the server's processor time.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
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
    answered one after the other. conditional: False ignores If-None-Match. delay: seconds by which every answer is
    late; concurrent requests wait at the same time. requests: the kind and path of each; a LIST has its prefix."""

    inside: Application
    meet: str | None = None
    conditional: bool = True
    delay: float = 0.0
    requests: list[tuple[str, str]] = field(default_factory=list)
    waiting: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))
    writing: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == DOOR:
            return self._control(environ, start_response)
        self.requests.append(_request(method, path, environ.get("QUERY_STRING", "")))
        time.sleep(self.delay)
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
            self.meet, self.conditional, self.delay = body["meet"], body["conditional"], body["delay"]
            self.waiting.reset()
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"requests": self.requests, "processor_seconds": time.process_time()}).encode()]


def _request(method: str, path: str, query: str) -> tuple[str, str]:
    parameters = parse_qs(query, keep_blank_values=True)
    if method == "GET" and ("list-type" in parameters or "uploads" in parameters):
        return "LIST", f"{path.rstrip('/')}/{parameters.get('prefix', [''])[0]}"
    return method, path


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

"""Messages to a webhook: of which runs, with what in them, and failures to send them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from pgoutput_etl.config.settings import Metrics, Notify, Occasion, load_config
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.outputs.ended_run import ConditionMetrics, EndedRun, RunMetrics
from pgoutput_etl.outputs.publish import RunPublisher
from pgoutput_etl.targets.condition import ConditionKind
from pgoutput_etl.work.files.recorder import RunRecorder

ROOT = Path(__file__).parents[3]

ODD = ConditionMetrics("public", "<!channel>\x1b", "diverged", 3)
RUN = RunMetrics("shop", "", 0.0, 3, 1.0, conditions=(ODD, ConditionMetrics("public", "t", "held", 0)))


@dataclass
class Receiver:
    """A server that answers with a status, and keeps what it got."""

    status: int = 200
    messages: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def notified(self, run: EndedRun, *on: Occasion) -> list[str]:
        """The warnings."""
        with patch("pgoutput_etl.outputs.publish.print_to_stderr") as printed:
            RunPublisher.of("shop", Metrics(), Notify(self.url, on or tuple(Occasion))).end(run)
        return [call.args[0] for call in printed.call_args_list]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.messages.append(json.loads(body))
            self.send_response(receiver.status)
            self.send_header("Location", f"{receiver.url}/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            receiver.messages.append({"followed": self.path})
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        receiver.url = f"http://127.0.0.1:{server.server_port}/secret"
        yield receiver
        server.shutdown()
        thread.join()


def test_tables_that_need_somebody_are_named_by_their_state(receiver: Receiver) -> None:
    assert receiver.notified(EndedRun(RUN)) == []
    [message] = receiver.messages
    assert message["tables"] == {"held": ["public.t"], "diverged": ["public.<!channel>\x1b"]}
    held, diverged = "held: public.t", "diverged: public.&lt;!channel&gt;\\x1b"
    assert message["text"] == f"shop: {held}; {diverged} (exit code 3)"
    assert (message["source"], message["exit_code"], message["error"]) == ("shop", 3, None)


def test_only_what_somebody_asked_for(receiver: Receiver) -> None:
    receiver.notified(EndedRun(RUN), Occasion.FAILED, Occasion.INCOMPLETE)
    receiver.notified(EndedRun(replace(RUN, conditions=())))
    receiver.notified(EndedRun(RUN, found_nothing=True))
    assert receiver.messages == []
    receiver.notified(EndedRun(RUN), Occasion.HELD)
    assert [message["tables"] for message in receiver.messages] == [{"held": ["public.t"]}]


def test_a_failed_run_is_named_by_its_class_unless_a_later_one_may_do_it(receiver: Receiver) -> None:
    failed = RunMetrics("shop", "", 0.0, 1, 1.0, error="RunError")
    receiver.notified(EndedRun(failed, error=ValueError("a value")))
    receiver.notified(EndedRun(replace(failed, exit_code=75)))
    receiver.notified(EndedRun(failed), Occasion.HELD)
    assert [message["text"] for message in receiver.messages] == ["shop: the run failed with RunError (exit code 1)"]
    assert "a value" not in str(receiver.messages)


@pytest.mark.parametrize("status", [302, 404, 500])
def test_a_webhook_that_fails_is_a_warning_without_its_url(receiver: Receiver, status: int) -> None:
    receiver.status = status
    [warning] = receiver.notified(EndedRun(RUN))
    assert warning.startswith("notify: the run could not be published: ")
    assert "secret" not in warning
    assert len(receiver.messages) == 1, "no redirect is followed"


def test_a_run_of_the_job_tells_the_webhook(receiver: Receiver) -> None:
    with pytest.raises(ValueError, match="a value"), RunRecorder("shop", Metrics(), Notify(receiver.url)):
        raise ValueError("a value")
    with pytest.raises(ValueError, match="b"), RunRecorder("shop", Metrics(), Notify(receiver.url), job="backfill"):
        raise ValueError("b")
    assert [(message["job"], message["error"]) for message in receiver.messages] == [
        ("apply", "ValueError"),
        ("backfill", "ValueError"),
    ]
    assert receiver.messages[1]["text"] == "shop: backfill failed with ValueError (exit code 1)"


def test_there_is_an_occasion_for_every_state() -> None:
    """The configuration can't import the states, which are above it."""
    assert {occasion.value for occasion in Occasion} == {"failed", *(state.value for state in ConditionKind)}


def config_with(tmp_path: Path, notify: str) -> Notify | None:
    path = tmp_path / "job.yaml"
    path.write_text(f"source: {{name: s, landing: /l}}\ntarget: {{root: /t}}\n{notify}")
    return load_config(str(path), environ={"SHOP_WEBHOOK": "https://hooks.example/x"}).notify


def test_the_runbooks_configuration(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    block = page.partition("<!-- notify -->\n```yaml\nnotify:")[2].partition("```")[0]
    notify = config_with(tmp_path, f"notify:{block}")
    assert notify == Notify("https://hooks.example/x", (Occasion.FAILED, Occasion.HELD, Occasion.DIVERGED))


@pytest.mark.parametrize("url", ["ftp://x/y", "file:///etc/passwd", "https://x/a b", "https://x/\n"])
def test_another_url_is_refused_without_naming_it(url: str, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"notify\.url: expected a URL that begins with https:// or http://"
    ) as refused:
        config_with(tmp_path, yaml.safe_dump({"notify": {"url": url}}))
    assert url not in str(refused.value)

"""The benchmarks leave out decoders in other languages whose tools are missing, and report it."""

from __future__ import annotations

import pytest

from benchmarks.peers.running import built_peers


def test_a_language_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    peers, missing = built_peers(lambda _: None)
    assert peers == []
    assert missing == [
        "Go: left out, as go is not installed",
        "Rust: left out, as cargo is not installed",
    ]

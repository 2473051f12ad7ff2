"""A session with the settings of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.spark import session


def test_a_configuration_gives_name_settings_and_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "source: {name: shop, landing: /l}\ntarget: {root: /t}\n"
        "spark: {spark.remote: 'sc://server', spark.a: one, spark.b: one, spark.c: '${C}'}\n"
    )
    started: list[Any] = []
    monkeypatch.setattr(session, "connect", lambda *given: started.append(given))
    session.start_session(load_config(str(path), environ={"C": "secret"}), {"spark.b": "two"})
    [(server, name, settings, chosen)] = started
    assert (server, name) == ("sc://server", "pgoutput_etl shop")
    assert {key: settings[key] for key in ("spark.a", "spark.b", "spark.c")} == {
        "spark.a": "one",
        "spark.b": "two",
        "spark.c": "secret",
    }
    assert "spark.b" in chosen

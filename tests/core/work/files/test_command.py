"""The nightly job's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_etl.exit_codes import EXIT_USAGE
from pgoutput_etl.jobs.apply import COMMAND


def test_a_look_without_a_pause_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "job.yaml"
    config.write_text("source: {name: shop, landing: ./landing}\ntarget: {root: ./tables}\n")
    assert COMMAND.main(arguments=["--config", str(config), "--follow", "0s"]) == EXIT_USAGE
    assert capsys.readouterr().err == "PGO-1200: ConfigError: --follow: expected 1s or more\n"

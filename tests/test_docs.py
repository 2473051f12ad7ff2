"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pgoutput_etl.config import load_config, refuse_unbuilt
from tools import configuration_page
from tools.types_table import PAGE, page

ROOT = Path(__file__).parents[1]
_TESTED = re.compile(r"<!-- tested -->\n```yaml\n(.*?)```\n", re.DOTALL)
_LINK = re.compile(r"\]\(([^):#]+)\)")


def test_the_table_of_types_is_the_codes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "make it anew: python -m tools.types_table"


def test_the_table_of_the_configuration_is_the_codes() -> None:
    text = configuration_page.PAGE.read_text(encoding="utf-8")
    assert text == configuration_page.page(text), "make it anew: python -m tools.configuration_page"


def test_every_key_of_the_configuration_is_explained() -> None:
    there = {key.path for _, found in configuration_page.keys() for key in found}
    assert there == set(configuration_page.MEANINGS), "tools/configuration_page.py says what each key is for"


def test_the_least_configuration_can_be_run(tmp_path: Path) -> None:
    (text,) = _TESTED.findall(configuration_page.PAGE.read_text(encoding="utf-8"))
    path = tmp_path / "shop.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={"LANDING": "s3a://lake"})
    refuse_unbuilt(config)
    assert config.source.landing == "s3a://lake/shop"


def test_the_configuration_of_types_can_be_run(tmp_path: Path) -> None:
    (text,) = _TESTED.findall(PAGE.read_text(encoding="utf-8"))
    path = tmp_path / "types.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    refuse_unbuilt(config)
    assert config.types["public.heights"] == "range(float8)"


def test_the_configuration_of_modes_can_be_run(tmp_path: Path) -> None:
    (text,) = _TESTED.findall((ROOT / "docs" / "modes.md").read_text(encoding="utf-8"))
    path = tmp_path / "modes.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    refuse_unbuilt(config)
    assert [rule.mode.value for rule in config.tables] == ["history", "soft_delete", "append"]


@pytest.mark.parametrize("page", ["messages", "metrics"])
def test_the_configurations_of_messages_and_metrics_can_be_run(tmp_path: Path, page: str) -> None:
    (text,) = _TESTED.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    path = tmp_path / f"{page}.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    refuse_unbuilt(config)
    assert config.source.origins.accepts("elsewhere") == (page == "metrics")
    assert config.metrics.opentelemetry == (page == "metrics")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_every_file_that_is_linked_is_there(path: Path) -> None:
    named = _LINK.findall(path.read_text(encoding="utf-8"))
    assert [name for name in named if not (path.parent / name).exists()] == []

"""Several sources in one file: a configuration for each, with the other sections of the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.config.settings import document_of, load_config, load_configs
from pgoutput_etl.errors import ConfigError
from tests.core.config.test_settings import ENVIRON, SMALLEST

TWO = """\
sources:
  - {name: shop, landing: "./${FOUR}/shop"}
  - {name: billing, landing: ./in/billing, gaps: accept}
target: {root: "./tables/{source}"}
metrics: {json: ./runs.jsonl, prometheus: "./{source}.prom"}
defaults: {mode: history}
tables: [{match: "public.*", rename: "{source}.{table}"}]
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def written(text: str) -> str:
    Path("shop.yaml").write_text(text, encoding="utf-8")
    return "shop.yaml"


def test_each_source_has_the_other_sections_and_places_of_its_own(tmp_path: Path) -> None:
    shop, billing = load_configs(written(TWO))
    assert (shop.source.landing, billing.source.landing) == (f"{tmp_path}/4/shop", f"{tmp_path}/in/billing")
    assert [config.state.root for config in (shop, billing)] == [
        f"{tmp_path}/tables/shop/_pgoutput_etl",
        f"{tmp_path}/tables/billing/_pgoutput_etl",
    ]
    assert (billing.metrics.json, billing.metrics.prometheus) == ("./runs.jsonl", "./billing.prom")
    assert {config.rule_for("public", "t").mode for config in (shop, billing)} == {Mode.HISTORY}
    assert load_config("shop.yaml", source="billing") == billing
    assert load_config("shop.yaml", source="billing").options == billing.options
    assert job_line(billing, "plan") == "pgoutput-etl plan --config shop.yaml --source billing"
    assert document_of(billing).place("source.gaps") == "shop.yaml:3"


def test_one_source_in_a_list_is_the_only_one() -> None:
    one = SMALLEST.replace("source: {name: shop, landing: ./in}", "sources: [{name: shop, landing: ./in}]")
    assert load_config(written(one)) == load_config(written(SMALLEST)) == load_config(written(SMALLEST), source="shop")
    assert load_config("shop.yaml").options == ("--config", "shop.yaml")
    braces = SMALLEST.replace("./out", "'./{source}'")  # which stands for itself, as before there were several
    assert str(load_config(written(braces)).target.root).endswith("/{source}")


@pytest.mark.parametrize(
    ("text", "source", "said"),
    [
        (TWO, None, "shop.yaml: expected the name of a source (--source), because it has several: shop, billing"),
        (TWO, "bill", "--source: shop.yaml has no source of this name; expected shop or billing"),
        (SMALLEST, "bill", "--source: shop.yaml has no source of this name; expected shop"),
        (TWO + "source: {name: a, landing: b}", None, "shop.yaml: sources: expected source or sources, not both"),
        ("sources: {}", None, "shop.yaml: sources: expected a list of one or more sources"),
        ("sources: []", None, "shop.yaml: sources: expected a list of one or more sources"),
        (TWO.replace("billing,", "shop,"), None, "sources[1].name: expected another name than that of sources[0]"),
        (TWO.replace("/{source}.prom", "/x.prom"), "shop", "metrics.prometheus: expected {source} in it"),
        (TWO.replace("accept", "hunter2"), "billing", "shop.yaml: sources[1].gaps: expected one of refuse, accept"),
        (TWO.replace("FOUR", "NOT_SET"), "billing", "sources[0].landing: the environment variable NOT_SET is not set"),
        ("sources: [a]\ntarget: {root: b}", None, "shop.yaml: sources[0]: expected a mapping"),
        ("sources: [{landing: a}]\ntarget: {root: b}", None, "shop.yaml: sources[0].name: missing"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, source: str | None, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(written(text), source=source)
    assert said in str(refused.value)

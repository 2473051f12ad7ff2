"""`validate` lists every mistake of a configuration at once, each with its key and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.cli import main
from tests.core.config.test_settings import SMALLEST

MISTAKEN = """\
source: {name: "a b", landing: ./in, framming: auto, origins: 3}
target: {root: ./out, catalog: main, readers: x}
rules: all
tables:
  - {match: "public.*", mode: hunter2, keyy: [id], columns: {a: hide, b: {hsh: x}}}
  - {match: "x.*", comment: "${NOT_SET}", properties: {a: b}, rename: x.y}
  - {skip: true}
spark:
  a: [hunter2]
merge: {parallel_tables: 0}
tragte: 1
"""


def validated(text: str, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    Path("shop.yaml").write_text(text, encoding="utf-8")
    code = main(["validate", "--config", "shop.yaml", "--json", *options])
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    return code, json.loads(printed)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_mistake_is_listed_with_its_key_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, report = validated(MISTAKEN, capsys)
    assert (code, report["exit_code"], report["sources"]) == (2, 2, [])
    assert sorted((e["line"], e["key"]) for e in report["errors"]) == [
        (1, "source.framming"),
        (1, "source.name"),
        (1, "source.origins"),
        (2, "target"),
        (2, "target.readers"),
        (3, "rules"),
        (5, "tables[0].columns.a"),
        (5, "tables[0].columns.b.hsh"),
        (5, "tables[0].keyy"),
        (5, "tables[0].mode"),
        (6, "tables[1].comment"),
        (6, "tables[1].properties.a"),
        (6, "tables[1].rename"),
        (7, "tables[2].match"),
        (9, "spark.a"),
        (10, "merge.parallel_tables"),
        (11, "tragte"),
    ]
    assert [e["line"] for e in report["errors"]] == sorted(e["line"] for e in report["errors"])
    assert all(e["message"].startswith(f"shop.yaml: {e['key']}: ") for e in report["errors"])
    assert main(["validate", "--config", "shop.yaml"]) == 2
    printed = capsys.readouterr()
    lines = [line for line in printed.err.splitlines() if line.startswith("PGO-1100: ConfigError: shop.yaml: ")]
    assert (printed.out, len(lines)) == ("", len(report["errors"]))


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("source: [", "", "line 1"),
        ("- a", "", "expected a mapping"),
        (SMALLEST + "tables: [{match: a.b}, {match: a.b}]", "tables[1]", "it never applies"),
        (SMALLEST + "".join(f"k{n}: 1\n" for n in range(1000)), "k0", "unknown key"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole(text: str, key: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = validated(text, capsys)
    assert (code, report["errors"][0]["key"]) == (2, key)
    assert said in report["errors"][0]["message"]
    assert len(report["errors"]) <= 100


def test_a_valid_file_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = validated(SMALLEST + "tables: [{match: a.b}]", capsys, "--set", "source.name=other")
    assert code == 0
    described = {"source": "other", "landing": f"{tmp_path}/in", "target": f"{tmp_path}/out"}
    assert report["sources"] == [{**described, "state": f"{tmp_path}/out/_pgoutput_etl"}]
    assert (report["tables"], report["errors"]) == (1, [])
    assert main(["validate", "--config", "shop.yaml"]) == 0
    assert "shop.yaml is valid. It has 1 rule for tables." in capsys.readouterr().out

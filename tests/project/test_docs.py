"""The documentation matches the code."""

from __future__ import annotations

import ast
import builtins
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import pytest

from pgoutput_etl.config import json_schema
from pgoutput_etl.config.column_rules import SALT_VARIABLE
from pgoutput_etl.config.settings import SourceDatabase, load_config
from pgoutput_etl.postgres.queries import RECEIVER_ENVIRONMENT
from pgoutput_etl.targets.condition import ConditionKind
from tools import configuration_page, site_pages
from tools.types_table import PAGE, page

ROOT = Path(__file__).parents[2]
_TESTED = re.compile(r"<!-- tested -->\n```yaml\n(.*?)```\n", re.DOTALL)
_LINK = re.compile(r"\]\(([^):#]+)(?:#[^)]*)?\)")


def test_the_table_of_types_matches_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "regenerate it: python -m tools.types_table"


def test_the_table_of_the_configuration_matches_the_code() -> None:
    text = configuration_page.PAGE.read_text(encoding="utf-8")
    assert text == configuration_page.page(text), "regenerate it: python -m tools.configuration_page"


def test_the_schema_of_the_configuration_matches_the_code() -> None:
    text = json_schema.FILE.read_text(encoding="utf-8")
    assert text == configuration_page.schema_text(), "regenerate it: python -m tools.configuration_page"


def test_every_key_of_the_configuration_is_explained() -> None:
    assert [key.path for _, keys in configuration_page.all_keys() for key in keys if not key.meaning] == []


def test_the_smallest_configuration_is_valid(tmp_path: Path) -> None:
    (text,) = _TESTED.findall(configuration_page.PAGE.read_text(encoding="utf-8"))
    path = tmp_path / "shop.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={"LANDING": "s3a://lake"})
    assert config.source.landing == "s3a://lake/shop"


def test_the_configuration_of_types_is_valid(tmp_path: Path) -> None:
    (text,) = _TESTED.findall(PAGE.read_text(encoding="utf-8"))
    path = tmp_path / "types.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    assert config.types["public.heights"] == "range(float8)"


def test_the_configuration_of_modes_is_valid(tmp_path: Path) -> None:
    (text,) = _TESTED.findall((ROOT / "docs" / "modes.md").read_text(encoding="utf-8"))
    path = tmp_path / "modes.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    assert [rule.mode.value for rule in config.tables] == ["history", "soft_delete", "append"]


def test_the_configuration_of_columns_is_valid(tmp_path: Path) -> None:
    (text,) = _TESTED.findall((ROOT / "docs" / "mask-columns.md").read_text(encoding="utf-8"))
    path = tmp_path / "columns.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={SALT_VARIABLE: "a salt of sixteen bytes and more"})
    assert [use.action.value for use in config.tables[0].column_rules.values()] == ["hash", "drop", "redact", "redact"]
    assert config.tables[0].fixed_target == ("crm", "customer")


def test_the_configuration_of_states_is_valid(tmp_path: Path) -> None:
    (text,) = _TESTED.findall((ROOT / "docs" / "states.md").read_text(encoding="utf-8"))
    path = tmp_path / "states.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    assert config.source.snapshot.value == "accept"
    assert [rule.on_missing_row.value for rule in config.tables] == ["ignore", "hold"]


def test_the_page_of_states_has_every_state() -> None:
    text = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*(\w+)\*\* \|", text, re.MULTILINE)
    assert rows == [condition.value for condition in ConditionKind]


@pytest.mark.parametrize("page", ["ledger", "runbook"])
def test_the_configurations_of_origins_and_metrics_can_be_run(tmp_path: Path, page: str) -> None:
    (text,) = _TESTED.findall((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    path = tmp_path / f"{page}.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    assert config.source.origins.accepts("elsewhere") == (page == "runbook")
    assert config.metrics.opentelemetry == (page == "runbook")


def test_the_configuration_of_lineage_is_valid(tmp_path: Path) -> None:
    (text,) = blocks("neighbors.md", "yaml")
    path = tmp_path / "lineage.yaml"
    path.write_text(text, encoding="utf-8")
    config = load_config(str(path), environ={})
    assert config.metrics.openlineage == SourceDatabase("postgres://db.example:5432", "shop")


def test_configurations_of_object_storage_are_valid_and_hide_secrets(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
    adls, gcs = re.findall(r"<!-- configuration -->\n```yaml\n(.*?)```\n", page, re.DOTALL)
    s3 = (ROOT / "conf" / "s3.yaml").read_text(encoding="utf-8")
    roots: list[str] = []
    secrets: set[str] = set()
    for text in (s3, adls, gcs):
        path = tmp_path / "job.yaml"
        path.write_text(text, encoding="utf-8")
        config = load_config(str(path), environ=dict.fromkeys(re.findall(r"\$\{(\w+)\}", text), "secret"))
        roots.append(config.state.root)
        secrets |= config.secrets
        assert all(name in config.secrets for name in config.spark if name.endswith((".secret", ".key")))
    assert [root.partition(":")[0] for root in roots] == ["s3a", "abfss", "gs"]
    assert {name.rpartition(".")[0] for name in secrets} >= {"spark.hadoop.fs.s3a.secret", "spark.hadoop.fs.s3a.access"}


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_every_linked_file_exists(path: Path) -> None:
    links = _LINK.findall(path.read_text(encoding="utf-8"))
    assert [name for name in links if not (path.parent / name).exists()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_every_named_test_file_exists(path: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+(?:\.py)?)`", path.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"<!-- tested -->\n```{language}\n(.*?)```\n", text, re.DOTALL)


def test_every_name_in_a_block_of_python_comes_from_its_page() -> None:
    """Whoever copies a page's blocks in order misses nothing."""
    missing = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        known = set(dir(builtins))
        for code in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            nodes = [*ast.walk(ast.parse(code))]
            names = [node for node in nodes if isinstance(node, ast.Name)]
            known |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
            known |= {node.arg for node in nodes if isinstance(node, ast.arg)}
            for node in nodes:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    known |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            if unknown := {node.id for node in names} - known:
                missing[path.name] = unknown
    assert missing == {}


def test_the_first_commands_without_spark_work() -> None:
    (commands,) = blocks("getting-started.md", "sh")
    script = commands.replace("python ", f"{sys.executable} ")
    done = subprocess.run(["bash", "-euc", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "public.orders" in done.stdout


def test_the_first_lines_of_python_print_the_demos_row_counts() -> None:
    (code,) = blocks("getting-started.md", "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        *("customers 60 rows", "lines 1814 rows", "orders 909 rows", "products 80 rows", "visits 1200 rows"),
    ]


def test_the_drawing_names_existing_modules() -> None:
    drawing = (ROOT / "docs" / "img" / "architecture.svg").read_text(encoding="utf-8")
    named = [name for text in re.findall(r"monospace\"[^>]*>([^<]*)<", drawing) for name in text.split()]
    assert len(named) > 8
    modules = {path.stem for path in (ROOT / "pgoutput_etl").rglob("*")}
    assert [name for name in named if name not in modules] == []


@pytest.mark.parametrize(
    ("source", "link", "on_the_site"),
    [
        ("README.md", "[types](docs/types.md)", "[types](types.md)"),
        ("README.md", "[why](docs/adr)", "[why](adr/index.md)"),
        (
            "README.md",
            "[what](CHANGELOG.md) and ![run](docs/img/run.svg)",
            "[what](changelog.md) and ![run](img/run.svg)",
        ),
        ("README.md", "[a page](https://example.org/a)", "[a page](https://example.org/a)"),
        ("docs/modes.md", "[columns](../README.md#what-you-get)", "[columns](index.md#what-you-get)"),
        ("docs/landing.md", "[it](../conf/landing/shop.env)", "[it](files/conf/landing/shop.env)"),
        ("docs/adr/0001-a.md", "[types](../types.md#x)", "[types](../types.md#x)"),
        ("docs/adr/0001-a.md", "[front](../../README.md)", "[front](../index.md)"),
    ],
)
def test_links_of_the_repository_work_on_the_site(source: str, link: str, on_the_site: str) -> None:
    assert site_pages.for_site(link, PurePosixPath(source)) == on_the_site


def test_every_page_is_on_the_site() -> None:
    pages = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    generated = {*site_pages.PAGES.values(), site_pages.DECISIONS}
    assert sorted(pages) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} | generated)


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="`make docs` installs mkdocs")
def test_the_site_builds_and_refuses_a_broken_link(tmp_path: Path) -> None:
    """One build shows both: the broken link is the only warning."""
    for name in ("conf", "docs", "notebooks", "tools", "mkdocs.yml", *site_pages.PAGES):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    for linked in site_pages.linked_files():
        (tmp_path / linked).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / linked, tmp_path / linked)
    with (tmp_path / "docs" / "verify.md").open("a", encoding="utf-8") as page:
        page.write("\n[nowhere](maintain.md#no-such-heading)\n")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Aborted with 1 warnings in strict mode" in done.stdout, done.stderr


_READS_AS_TEXT = re.compile(r"pg_recvlogical .*--start|_binary_changes\(|\\copy .*FORMAT csv", re.DOTALL)


def test_every_receiver_overrules_the_settings_of_database_and_role() -> None:
    shop = (ROOT / "conf" / "landing" / "shop.env").read_text(encoding="utf-8")
    settings = [
        f'{name}="{value}"' if " " in value else f"{name}={value}" for name, value in RECEIVER_ENVIRONMENT.items()
    ]
    assert [line for line in shop.splitlines() if line.startswith(tuple(RECEIVER_ENVIRONMENT))] == settings
    exports = [f"export {setting}" for setting in settings]
    receivers = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for block in re.findall(r"```sh\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            if _READS_AS_TEXT.search(block):
                assert {*exports} <= {*block.splitlines()}, path
                receivers.append(path.name)
    assert receivers == ["README.md", "getting-started.md", "landing.md", "snapshot.md"]

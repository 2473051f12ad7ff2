"""The shape of the code: imports go one way, the core knows no Spark, no file knows the machine it was written on."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pgoutput_etl"

# Each module may import those before it. The core needs no JVM.
CORE = (
    "errors", "lsn", "xids", "commit_time", "compiled", "copying", "wire", "messages", "decode", "inflate", "content",
    "framing", "noted", "resync", "message_rows", "salvage", "columnar", "following", "units", "bulk", "scanner",
    "scan", "blocks",
    "identity", "parts", "arranging", "file_index", "steps", "numbering", "relations", "versions", "outcomes",
    "origins", "fates", "logical_messages", "tallies", "lineage",
    "transactions", "cuts", "types", "tuples", "changes", "fast_events", "windows", "superseded", "every_event",
    "key_columns", "key_facts", "write_method",
    "reshaping", "replay", "remembering", "naming", "column_uses", "config_file", "config", "rewriting", "protecting",
    "protected", "modes", "target_places", "targets", "batch_plan", "report", "telemetry", "metrics", "backfill_report",
    "backfill_request", "claims", "leftovers",
    "server_settings", "looking", "placing", "two_servers", "message_lines", "inspection", "local_files",
    "archive_report", "archive_rows", "table_rows", "archive_page", "inspect_report", "plan_report", "comparing",
    "server_queries", "postgres_csv", "verify_request", "verify_report", "retention", "maintain_report",
    "copy_files", "pg_dump_toc", "server_catalog", "snapshot_request", "snapshot_report",
)  # fmt: skip
ON_SPARK = (
    "spark_types",
    "connecting",
    "managed",
    "delta_table",
    "spark",
    "shipping",
    "batch_keys",
    "assembling",
    "quarantine",
    "continuity",
    "sources",
    "inspecting",
    "claim_files",
    "ledger_rows",
    "ledger",
    "storage",
    "net_effect",
    "key_match",
    "merge",
    "row_states",
    "soft_deletes",
    "histories",
    "appended",
    "evolving",
    "applying",
    "writing",
    "rereading",
    "rebuilding",
    "redriving",
    "reading",
    "row_texts",
    "other_sides",
    "exported_snapshot",
    "snapshot_sources",
    "staging",
    "snapshotting",
    "backfill",
    "preparing",
    "pipeline",
    "planning",
    "differences",
    "verifying",
    "upkeep",
    "maintaining",
    "exploring",
    "explore",
    "commands",
)
ORDER = CORE + ON_SPARK
ENGINES = {"pyspark", "delta"}


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or anywhere else, by its full name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path}: a relative import"
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_module_has_its_place_in_the_order() -> None:
    assert {module_of(path) for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    mine = module_of(path)
    for name in imported(path):
        package, _, rest = name.partition(".")
        theirs = rest.partition(".")[0]
        if package == "pgoutput_etl" and theirs != mine:
            assert ORDER.index(theirs) < ORDER.index(mine), f"{mine} imports {theirs}, which comes after it"
        if mine in CORE:
            assert package not in ENGINES, f"{mine} belongs to the core, and imports {name}"


def test_the_core_can_be_used_where_spark_is_not_installed() -> None:
    blocked = "".join(f"sys.modules[{engine!r}] = None\n" for engine in sorted(ENGINES))
    imports = "".join(f"import pgoutput_etl.{module}\n" for module in CORE)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{blocked}{imports}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def files_of_the_repository() -> list[Path]:
    """What is or would be committed."""
    listing = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if (ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_no_file_names_a_place_on_one_machine() -> None:
    places = [f"/{folder}/".encode() for folder in ("home", "root", "work", "tmp/env")]
    files = files_of_the_repository()
    assert Path(__file__) in files
    found = [f"{path.relative_to(ROOT)}: {place!r}" for path in files for place in places if place in path.read_bytes()]
    assert not found


def test_sparks_types_of_arrows_are_asked_for_in_one_place() -> None:
    """Spark's own functions for it differ from release to release."""
    asking = [path.name for path in PACKAGE.rglob("*.py") if "pyspark.sql.pandas" in path.read_text(encoding="utf-8")]
    assert asking == ["spark_types.py"]

"""`pgoutput-etl` in a process of its own, as pip installs it: what a user sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.small_archives import Messages, copydata, delete, insert, table, transaction, update

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
INT4 = 23
PROGRESS = re.compile(r"\[ *\d+\.\d s\] .+")
# Of shared machines only; the first run of all also names what it downloads.
REMOVED = ("SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT")

CONFIG = """
source: {{name: shop, landing: '{folder}/landing', snapshot: accept}}
target: {{root: '{folder}/warehouse'}}
merge: {{max_transactions: 1}}
spark: {{spark.sql.shuffle.partitions: 1, spark.ui.enabled: false{more}}}
"""


def apply(folder: Path, more: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "shop.yaml").write_text(CONFIG.format(folder=folder, more=more), encoding="utf-8")
    return run(folder, **environment)


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """With the folder's configuration."""
    kept = {key: value for key, value in os.environ.items() if key not in REMOVED}
    installed = Path(sys.executable).with_name("pgoutput-etl")
    return subprocess.run(
        [installed, "apply", "--config", folder / "shop.yaml"],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def land(folder: Path, *messages: Messages) -> None:
    (folder / "landing").mkdir()
    for number, file in enumerate(messages):
        (folder / "landing" / f"{number}.bin").write_bytes(copydata(file, 0x1000000 * (number + 1)))


@pytest.mark.soak
def test_standard_error_has_progress_only(tmp_path: Path) -> None:
    """Also where Delta reads deletion vectors of a table whose column was renamed."""
    first, renamed = table(("id", INT4), "v"), table(("id", INT4), "w")
    rows = [insert(str(n), "x") for n in range(50)]
    land(
        tmp_path,
        transaction(1, 100, first, *rows),
        transaction(2, 200, renamed, update("1", "y"), delete("2", None)),
        transaction(3, 300, renamed, update("3", "y"), delete("4", None)),
    )
    done = apply(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert [line for line in lines if not PROGRESS.fullmatch(line) and not line.startswith("downloading ")] == []
    assert any(line.endswith("writing the ledger") for line in lines)
    assert "Batch 3 of shop: 1 file, " in done.stdout
    assert done.stdout.splitlines()[-1] == f"  pgoutput-etl show {tmp_path}/warehouse/public/t"


@pytest.mark.soak
def test_the_third_run_starts_from_the_classes_that_the_second_has_kept(tmp_path: Path) -> None:
    """A first run of an empty disk, as a container's, does not pay for what no other will use."""
    land(tmp_path, *(transaction(n, 100 * n, table(), insert(str(n), "x")) for n in (1, 2, 3)))
    files = sorted((tmp_path / "landing").iterdir())
    waiting = [file.rename(tmp_path / file.name) for file in files]
    sizes = []
    for number, file in enumerate(waiting):
        file.rename(files[number])
        loaded = f"-Xlog:class+load:file={tmp_path}/loaded{number}.txt"
        own = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "JDK_JAVA_OPTIONS": ""}  # the tests' keep no classes
        done = apply(tmp_path, **own, SPARK_SUBMIT_OPTS=loaded)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stderr.splitlines() if not PROGRESS.fullmatch(line)] == []
        (archive,) = (tmp_path / "cache" / "pgoutput_etl").glob("classes-*")
        sizes.append(archive.stat().st_size)
    assert sizes[0] == 0
    assert sizes[1] == sizes[2] > 50_000_000
    shared = [(tmp_path / f"loaded{n}.txt").read_text().count("shared objects file (top)") for n in range(3)]
    assert shared[:2] == [0, 0]
    assert shared[2] > 5_000


@pytest.mark.soak
def test_a_failed_download_shows_what_ivy_says_and_a_users_log_configuration_counts(tmp_path: Path) -> None:
    land(tmp_path, transaction(1, 100, table(), insert("1", "x")))
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.xml").write_text(
        '<Configuration status="trace"><Loggers><Root level="warn"/></Loggers></Configuration>'
    )
    (tmp_path / "ivy.xml").write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/none/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    more = f", spark.jars.ivySettings: '{tmp_path}/ivy.xml', spark.jars.ivy: '{tmp_path}/ivy'"
    done = apply(tmp_path, more, SPARK_CONF_DIR=str(tmp_path / "conf"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "io.delta#delta-spark" in done.stderr
    assert "UNRESOLVED DEPENDENCIES" in done.stderr
    assert f"{tmp_path}/conf/log4j2.xml" in done.stderr
    assert re.search(r"^PGO-4100: RunError: Spark did not start", done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr

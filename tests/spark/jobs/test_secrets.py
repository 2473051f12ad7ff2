"""Outside the tables, a job leaves no secret of the configuration and no cell value.

Searched: both outputs, the log at level INFO, the command lines of the job and its child processes, Spark's event log,
the Delta logs of targets and ledger, and the text columns of the ledger. Not searched, as they contain values by
design: the files of tables, the column statistics in Delta logs of targets, and the binary columns of the ledger, which
hold waiting and quarantined rows as they were sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pgoutput_etl.protocol.messages import Begin, ReplicaIdentity
from tests.support.encoder import Row, copydata, encode
from tests.support.servers.postgres import Server
from tests.support.small_archives import Change, Messages, delete_full, insert, table, transaction, update

ROOT = Path(__file__).parents[3]
SECRET, CELL, PASSWORD = "k3epMeOut", "c3llVa1ue", "0penSesame"
INT4 = 23
CONFIG = """
source: {{name: shop, landing: '{landing}'}}
target: {{root: '{target}'}}
spark:
  spark.master: local[1]
  spark.ui.showConsoleProgress: false
  spark.sql.shuffle.partitions: 1
  spark.databricks.delta.snapshotPartitions: 1
  spark.driver.extraJavaOptions: -Dlog4j2.configurationFile={logging}
  spark.eventLog.enabled: true
  spark.eventLog.compress: false
  spark.eventLog.rolling.enabled: false
  spark.eventLog.dir: '{events}'
  spark.hadoop.fs.s3a.secret.key: ${{SECRET}}
  spark.hadoop.fs.azure.account.key.shop: ${{SECRET}}
  spark.hadoop.shop.plain: ${{SECRET}}
  spark.shop.url: jdbc:x://user:${{SECRET}}@host
"""
# To a file, as a JVM that Python started prints only warnings to the console.
LOGGING = """
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c{{1}}: %m%n%ex
logger.spark.name = org.apache.spark
logger.spark.level = info
"""


def archive() -> bytes:
    """Tables that are applied, with an invalid value, and with a column that changes its type; a bag; unreadable bytes;
    and a waiting transaction."""
    retyped: list[Change] = [table("id", "v", oid=3, name="retyped"), insert("1", CELL, oid=3)]
    retyped += [table("id", ("v", INT4), oid=3, name="retyped"), insert("2", "7", oid=3)]
    bag = table("v", oid=4, name="bag", identity=ReplicaIdentity.FULL)
    messages: Messages = [
        *transaction(1, 0x100, table("id", "v"), insert(f"{CELL}1", f"{CELL}2"), insert("2", "x")),
        *transaction(2, 0x200, update(f"{CELL}1", f"{CELL}3"), update(f"{CELL}4", "x", old_key=["2", None])),
        *transaction(3, 0x300, table("id", ("n", INT4), oid=2, name="odd"), insert("1", f"{CELL}5", oid=2)),
        *transaction(4, 0x400, *retyped),
        *transaction(5, 0x500, bag, insert(f"{CELL}6", oid=4), insert(f"{CELL}7", oid=4)),
        *transaction(6, 0x600, delete_full(f"{CELL}6", oid=4)),
    ]
    unreadable = encode(insert("1", f"{CELL}8", oid=5)).replace(b"t", b"z", 1)
    torn = [encode(m) for m in transaction(7, 0x700, table(oid=5, name="lost"))]
    waiting = [encode(Begin(0x800, 0, 8)), encode(insert("9", f"{CELL}9"))]
    sent = [*map(encode, messages), *torn[:-1], unreadable, torn[-1], *waiting]
    return copydata(Row(0x1000000 + i, 0, message) for i, message in enumerate(sent))


def command_lines(pid: int) -> Iterator[str]:
    """The command lines of a process and its descendants, which every user of the machine can see."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    family = {pid}
    for _ in range(6):
        family |= {child for child, parent in parents.items() if parent in family}
    for member in family:
        try:
            yield Path(f"/proc/{member}/cmdline").read_text(errors="replace")
        except OSError:
            continue


def texts(value: object) -> Iterator[str]:
    """All strings in a value, without bytes."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)


def without_statistics(log: Path) -> str:
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        line.get("add", {}).pop("stats", None)
    return json.dumps(lines)


def without_snapshots(log: str) -> str:
    """A log at level INFO without Delta's snapshots of tables, which have the statistics of its files."""
    return "\n".join(line for line in log.splitlines() if not line.startswith(("INFO Snapshot: ", "INFO DeltaLog: ")))


def places(marker: str, texts: dict[str, str]) -> dict[str, str]:
    """The texts with the marker, cut to its surroundings."""
    return {name: text[max(0, text.find(marker) - 300) :][:330] for name, text in texts.items() if marker in text}


def printed_and_logged(
    tmp_path: Path, landing: Path, job: str, *options: str, more: str = "", code: int, **variables: str
) -> dict[str, str]:
    """The texts that a job leaves outside of tables, by their source. more: of the configuration."""
    target, events = tmp_path / "tables", tmp_path / "events"
    events.mkdir()
    config = tmp_path / "job.yaml"
    logging = tmp_path / "log4j2.properties"
    logging.write_text(LOGGING.format(log=tmp_path / "log"))
    config.write_text(CONFIG.format(landing=landing, target=target, events=events, logging=logging) + more)
    variables |= {"SECRET": SECRET, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment = {**os.environ, **variables}
    command: list[str | Path] = [sys.executable, ROOT / "jobs" / job, "--config", config, "--json", *options]

    commands: set[str] = set()
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err)
        while process.poll() is None:
            commands.update(command_lines(process.pid))
            time.sleep(0.2)

    errors = (tmp_path / "err").read_text()
    assert process.returncode == code, errors[-3000:]
    log = (tmp_path / "log").read_text()
    assert "INFO DAGScheduler" in log
    (event_log,) = (path.read_text() for path in events.iterdir() if path.is_file())
    assert "SparkListenerEnvironmentUpdate" in event_log
    assert "SparkListenerSQLExecutionStart" in event_log
    assert any("java" in line for line in commands)
    return {
        "standard output": (tmp_path / "out").read_text(),
        "standard error": errors,
        "log": log,
        "command lines": "\n".join(commands),
        "event log": event_log,
    }


def left_behind(tmp_path: Path, landing: Path, tables: str = "", **variables: str) -> dict[str, str]:
    """The texts that the job leaves, by their source. tables: more configuration."""
    (landing / "0.copydata").write_bytes(archive())
    printed = printed_and_logged(tmp_path, landing, "apply.py", more=tables, code=3, **variables)
    summary = json.loads(printed["standard output"])
    assert {t["table"] for t in summary["tables"] if t["held"] is None} >= {"t", "retyped", "bag"}
    target = tmp_path / "tables"
    ledger = target / "_pgoutput_etl"
    left = {
        **printed,
        **{str(log.relative_to(target)): without_statistics(log) for log in target.rglob("_delta_log/*.json")},
        **{
            f"{path.relative_to(target)}": "\n".join(texts(pq.ParquetFile(path).read().to_pylist()))
            for path in ledger.rglob("*.parquet")
        },
        "the ledger's statistics": "\n".join(log.read_text() for log in ledger.rglob("_delta_log/*.json")),
    }
    assert any("quarantine" in name for name in left)
    return left


@pytest.mark.soak
@pytest.mark.spark
def test_no_secret_and_no_value_is_left_behind(tmp_path: Path, landing: Path) -> None:
    texts_left = left_behind(tmp_path, landing)
    assert places(SECRET, texts_left) == {}
    texts_left["log"] = without_snapshots(texts_left["log"])
    assert places(CELL, texts_left) == {}


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.e2e
def test_the_password_of_a_server_reaches_workers_and_nothing_else(tmp_path: Path, landing: Path) -> None:
    """Their own environment has another password."""
    with Server(18) as server:
        server.psql(f"alter role postgres password '{PASSWORD}'; create table t (id int primary key, v text)")
        server.psql(
            f"insert into t select i, '{CELL}' || i from generate_series(1, 9) i; create publication p for table t"
        )
        server.create_slot("etl")
        (server.folder / "data" / "pg_hba.conf").write_text("local all all trust\nhost all all all scram-sha-256\n")
        server.psql("select pg_reload_conf()")
        url = f"postgresql://127.0.0.1:{server.port}/postgres"
        login = {"PGUSER": "postgres", "PGPASSWORD": PASSWORD}
        more = "  spark.executorEnv.PGPASSWORD: other\n"
        options = ("--tables", "public.*", "--server", url)
        left = printed_and_logged(tmp_path, landing, "snapshot.py", *options, more=more, code=0, **login)
    [table] = json.loads(left["standard output"])["tables"]
    assert table["loaded"] == 9
    assert "reading public.t" in left["standard error"]
    assert places(PASSWORD, left) == {}
    assert places(CELL, {**left, "log": without_snapshots(left["log"])}) == {}

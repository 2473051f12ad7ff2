"""A bucket on a test's own S3 server, and the jobs that use it, started by the documented commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.identifiers import path_segment
from tests.support.captures import NEVER_SENT_VALUES, Table
from tests.support.s3_server import DOOR
from tests.support.spark_servers import environment
from tests.support.truth import assert_equals_truth

ROOT = Path(__file__).parents[2]
BUCKET, LANDING, TABLES = "lake", "landing/shop", "tables"
CLAIMS = f"{TABLES}/_pgoutput_etl/_claims"
KEY, SECRET = "S3KEYMARKER7f", "s3secretmarker9d"
CONFIG, KEYS = ROOT / "conf" / "s3.yaml", {"S3_ACCESS_KEY": KEY, "S3_SECRET_KEY": SECRET}
SETTINGS = ("source.snapshot=accept", "tables=[{match: public.evo, columns: {d: {renamed_from: d}}}]")
_TESTED = re.compile(r"<!-- tested -->\n```sh\n(.*?)```\n", re.DOTALL)
_WITHIN = 600  # seconds


def packages() -> tuple[str, str]:
    """The packages and excluded packages of the documented command for S3."""
    [command] = _TESTED.findall((ROOT / "docs" / "storage.md").read_text(encoding="utf-8"))
    [included] = re.findall(r"--packages (\S+)", command)
    [excluded] = re.findall(r"--exclude-packages '(\S+)'", command)
    return included, excluded


@dataclass(frozen=True, slots=True)
class Done:
    status: int
    output: str
    errors: str

    def json(self) -> Any:
        return json.loads(self.output)


@dataclass(frozen=True, slots=True)
class Served:
    """All requests so far, as kinds and paths (/bucket/key), and the server's processor time in seconds."""

    requests: list[tuple[str, str]]
    processor_seconds: float


@dataclass(slots=True)
class Lake:
    url: str
    outputs: list[str] = field(default_factory=list)

    @property
    def _client(self) -> Any:
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **keys)

    def make_bucket(self) -> None:
        self._client.create_bucket(Bucket=BUCKET)

    def land(self, *files: Path, folder: str = LANDING) -> None:
        for file in files:
            self.put(f"{folder}/{file.name}", file.read_bytes())

    def put(self, key: str, content: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def content(self, key: str) -> bytes:
        content: bytes = self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def keep_versions(self) -> None:
        self._client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})

    def objects(self, below: str = TABLES) -> dict[str, str]:
        """Names and ETags."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{below}/")
        return {entry["Key"]: entry["ETag"] for page in pages for entry in page.get("Contents", [])}

    def control(self, meet: str | None = None, conditional: bool = True, delay: float = 0.0) -> None:
        """See s3_server.Door."""
        body = json.dumps({"meet": meet, "conditional": conditional, "delay": delay}).encode()
        urlopen(Request(f"{self.url}{DOOR}", body, method="PUT")).close()

    def served(self) -> Served:
        with urlopen(f"{self.url}{DOOR}") as answer:
            found = json.load(answer)
        return Served([(kind, path) for kind, path in found["requests"]], found["processor_seconds"])

    def start(self, job: str | Path, *arguments: str) -> subprocess.Popen[str]:
        """Starts a job by the documented command, in its own process group."""
        included, excluded = packages()
        small = ["--master=local[2]", "--driver-memory=2g"]
        small += ["--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"]
        small += ["--conf", f"spark.hadoop.fs.s3a.endpoint={self.url}"]
        small += ["--conf", "spark.hadoop.fs.s3a.path.style.access=true"]
        small += ["--conf", "spark.hadoop.fs.s3a.endpoint.region=us-east-1"]
        small += ["--packages", included, "--exclude-packages", excluded]
        keys = {**KEYS, "PYSPARK_PYTHON": sys.executable}
        # Jobs without a configuration use Amazon's variables; credentials of this machine must not leak in.
        keys |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [ROOT / "spark-submit.sh", *small, ROOT / "jobs" / job, *arguments],
            env={**environment(**keys), "TMPDIR": os.environ.get("TMPDIR", "/tmp")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, process: subprocess.Popen[str]) -> Done:
        output, errors = process.communicate(timeout=_WITHIN)
        self.outputs += [output, errors]
        return Done(process.returncode, output, errors)

    def job(self, name: str, *arguments: str) -> Done:
        """Runs a job with conf/s3.yaml."""
        return self.end(self.start_job(name, *arguments))

    def start_job(self, name: str, *arguments: str) -> subprocess.Popen[str]:
        settings = [word for setting in SETTINGS for word in ("--set", setting)]
        return self.start(f"{name}.py", "--config", str(CONFIG), *settings, "--json", *arguments)

    def config(self) -> Config:
        """conf/s3.yaml, for jobs in this process."""
        spark = {"endpoint": self.url, "path.style.access": "true", "endpoint.region": "us-east-1"}
        overrides = [f"spark.spark.hadoop.fs.s3a.{name}={value}" for name, value in spark.items()]
        return load_config(str(CONFIG), [*overrides, *SETTINGS], KEYS)

    def apply(self) -> dict[str, Any]:
        done = self.job("apply")
        assert done.status == 0, done.errors[-3000:]
        summary: dict[str, Any] = done.json()
        return summary

    def wait_for(self, folder: str, name: str, process: subprocess.Popen[str]) -> None:
        """Waits for an object. Lists only its folder, as listing everything would keep the server busy."""
        until = time.monotonic() + _WITHIN
        while f"{folder}/{name}" not in self.objects(folder):
            assert process.poll() is None, self.end(process).errors[-3000:]
            assert time.monotonic() < until, f"no {name}"
            time.sleep(0.05)

    def rows(self, path: str) -> list[dict[str, Any]]:
        """A Delta table's rows, read without Spark."""
        options = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        table = DeltaTable(f"s3://{BUCKET}/{path}", storage_options=options)
        rows: list[dict[str, Any]] = pa.table(table.scan().read_all()).to_pylist()
        return rows

    def assert_equals(self, spark: SparkSession, folder: Path, tables: list[Table]) -> None:
        """Spark reads a copy of the bucket, as delta-rs can't read tables with widened columns."""
        copy = folder / f"copy{len(list(folder.iterdir()))}"
        for key in self.objects():
            if not key.endswith("/") and "/_pgoutput_etl/" not in key:
                path = copy / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        for table in tables:
            path = copy / TABLES / path_segment(table.schema) / path_segment(table.name)
            rows: list[dict[str, Any]] = []
            if path.exists():
                rows = spark.read.format("delta").load(str(path)).toArrow().to_pylist()
            assert_equals_truth(rows, table.truth, never_sent=NEVER_SENT_VALUES.get(table.full_name))


@contextmanager
def lake(folder: Path) -> Iterator[Lake]:
    log = folder / "s3.log"
    command = [sys.executable, "-m", "tests.support.s3_server"]
    with log.open("w") as errors:
        server = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            assert port, log.read_text()
            lake = Lake(f"http://127.0.0.1:{port}")
            lake.make_bucket()
            yield lake
        finally:
            server.stdin.close()
            server.wait(20)
            server.stdout.close()

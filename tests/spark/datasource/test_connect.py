"""`spark.read.format("pgoutput")` and `readStream` through a Spark Connect server, which plans and reads."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pgoutput_etl.datasource.options import ReadOptions
from pgoutput_etl.datasource.stream import PlannedArchive
from tests.support.captures import DATA, files_of
from tests.support.spark_servers import LIGHT, SMALL_APPLICATION, connect_server, environment

pytestmark = [pytest.mark.spark, pytest.mark.soak]
SLOT = DATA / "random16" / "v2"
CLIENT = """
import json, sys
from pyspark.sql import SparkSession
import pgoutput_etl as pg

url, landing, folder = sys.argv[1:]
spark = SparkSession.builder.remote(url).getOrCreate()
pg.register(spark)
stream = spark.readStream.format("pgoutput").load(landing).writeStream.format("delta")
stream.option("checkpointLocation", f"{folder}/cp").trigger(availableNow=True).start(f"{folder}/out").awaitTermination()
frames = (spark.read.format("delta").load(f"{folder}/out"), spark.read.format("pgoutput").load(landing))
print(json.dumps([sorted(map(repr, frame.toArrow().to_pylist())) for frame in frames]))
"""


def test_a_batch_and_a_stream_through_a_connect_server(tmp_path: Path, landing: Path) -> None:
    client = tmp_path / "client.py"
    client.write_text(CLIENT)
    counts = []
    with connect_server(tmp_path, {"spark.master": "local[2]", **LIGHT, **SMALL_APPLICATION}) as url:
        for files in (files_of(SLOT)[:5], files_of(SLOT)[5:]):
            for file in files:
                shutil.copy(file, landing)
            command = (sys.executable, client, url, landing, tmp_path)
            done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            streamed, read = json.loads(done.stdout)
            plan = PlannedArchive.of(ReadOptions.of({"path": str(landing)})).plan
            want = [row for part in plan.parts() for batch in plan.read(part) for row in batch.to_pylist()]
            assert streamed == read == sorted(map(repr, want))
            counts.append(len(want))
    assert 0 < counts[0] < counts[1]

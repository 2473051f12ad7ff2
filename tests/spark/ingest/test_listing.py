"""Spark's own listing of the landing folder and binaryFile's agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest import listing
from pgoutput_etl.ingest.listing import list_landing
from pgoutput_etl.landing.fingerprint import LandedFile

pytestmark = pytest.mark.spark

NAMES = ("1.bin", "a b%20c#?.bin", "é.bin", "folder/2.bin", "folder/deep=1/3.bin", "empty.bin", ".hidden", "_4.bin")


@pytest.mark.parametrize("pattern", ["", "/*.bin", "/{folder,none}"])
def test_both_ways_to_list_agree(
    pattern: str, spark: SparkSession, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        (landing / name).parent.mkdir(parents=True, exist_ok=True)
        (landing / name).write_bytes(b"" if name == "empty.bin" else name.encode())

    def listed() -> list[LandedFile]:
        return sorted(list_landing(spark, f"{landing}{pattern}").files(), key=lambda file: file.path)

    by_index = listed()
    monkeypatch.setattr(listing, "_FEW_FILES", 0)
    assert by_index == listed()
    assert len(by_index) == {"": 5, "/*.bin": 3, "/{folder,none}": 2}[pattern]


def test_no_such_folder(spark: SparkSession, landing: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        list_landing(spark, f"{landing}/none")

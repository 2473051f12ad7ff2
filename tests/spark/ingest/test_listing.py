"""The landing folder's listing: all ways to list it agree, and sizes are checked before a file is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest import listing
from pgoutput_etl.ingest.listing import list_landing, oversized
from pgoutput_etl.landing.fingerprint import LandedFile

pytestmark = pytest.mark.spark

NAMES = ("1.bin", "a b%20c#?.bin", "é.bin", "folder/2.bin", "folder/deep=1/3.bin", "empty.bin", ".hidden", "_4.bin")


@pytest.mark.parametrize("pattern", ["", "/*.bin", "/{folder,none}"])
def test_all_ways_to_list_agree(
    pattern: str, spark: SparkSession, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        (landing / name).parent.mkdir(parents=True, exist_ok=True)
        (landing / name).write_bytes(b"" if name == "empty.bin" else name.encode())

    def listed() -> list[LandedFile]:
        return sorted(list_landing(spark, f"{landing}{pattern}").files(), key=lambda file: file.path)

    by_index = listed()
    monkeypatch.setattr(listing, "local_path", lambda *_: None)
    assert by_index == listed()
    monkeypatch.setattr(listing, "_FEW_FILES", 0)
    assert by_index == listed()
    assert len(by_index) == {"": 5, "/*.bin": 3, "/{folder,none}": 2}[pattern]


def test_no_such_folder(spark: SparkSession, landing: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        list_landing(spark, f"{landing}/none")


def test_a_file_that_does_not_fit_into_an_executor_is_refused_before_it_is_read(spark: SparkSession) -> None:
    """Only on storage from which Java reads it: there, the executor would die without naming the file."""
    jvm = spark._jvm
    assert jvm is not None
    heap = jvm.java.lang.Runtime.getRuntime().maxMemory()
    size = min(heap // 2 + 1, 2**31 - 1)
    assert 2 * size > heap, "the tests' driver has less than 4 GiB"

    assert not oversized(spark, [LandedFile("s3a://lake/a.bin", heap // 2, 0), LandedFile("file:/lake/b.bin", size, 0)])
    errors = oversized(spark, [LandedFile("s3a://lake/a.bin", 1, 0), LandedFile("s3a://lake/b.bin", size, 0)])
    assert errors.keys() == {"s3a://lake/b.bin"}
    expected = rf"s3a://lake/b\.bin has {size:,} bytes.*at most {heap // 2:,}.*Land smaller"
    assert re.search(expected, errors["s3a://lake/b.bin"].text)


def test_two_gibibytes_are_too_many_on_any_storage(spark: SparkSession) -> None:
    assert not oversized(spark, [LandedFile("file:/lake/a.bin", 2**31 - 1, 0)])
    errors = oversized(spark, [LandedFile("file:/lake/a.bin", 2**31, 0)])
    expected = r"a\.bin has 2,147,483,648 bytes.*at most 2,147,483,647 .*Land smaller"
    assert re.search(expected, errors["file:/lake/a.bin"].text)

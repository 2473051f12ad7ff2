"""The sizes of landed files are checked before any is read."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.ingest.listing import check_sizes
from pgoutput_etl.landing.fingerprint import LandedFile

pytestmark = pytest.mark.spark


def test_a_file_that_does_not_fit_into_an_executor_is_refused_before_it_is_read(spark: SparkSession) -> None:
    """Only on storage from which Java reads it: there, the executor would die without naming the file."""
    jvm = spark._jvm
    assert jvm is not None
    heap = jvm.java.lang.Runtime.getRuntime().maxMemory()
    size = min(heap // 2 + 1, 2**31 - 1)
    assert 2 * size > heap, "the tests' driver has less than 4 GiB"

    check_sizes(spark, [LandedFile("s3a://lake/a.bin", heap // 2, 0), LandedFile("file:/lake/b.bin", size, 0)])
    with pytest.raises(
        ArchiveError, match=rf"s3a://lake/b\.bin has {size:,} bytes.*at most {heap // 2:,}.*Land smaller"
    ):
        check_sizes(spark, [LandedFile("s3a://lake/a.bin", 1, 0), LandedFile("s3a://lake/b.bin", size, 0)])


def test_two_gibibytes_are_too_many_on_any_storage(spark: SparkSession) -> None:
    check_sizes(spark, [LandedFile("file:/lake/a.bin", 2**31 - 1, 0)])
    with pytest.raises(ArchiveError, match=r"a\.bin has 2,147,483,648 bytes.*at most 2,147,483,647 .*Land smaller"):
        check_sizes(spark, [LandedFile("file:/lake/a.bin", 2**31, 0)])

"""Incomplete archives and archives of two servers: refused before anything is written, with advice."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.protocol.messages import PgoutputMessage
from tests.support.captures import CAPTURES
from tests.support.jobs import Job, Nights
from tests.support.small_archives import insert, stream_commit, table, transaction

pytestmark = pytest.mark.spark


def one(xid: int, lsn: int) -> list[PgoutputMessage]:
    return transaction(xid, lsn, insert(str(lsn), "x"))


def assert_stopped(nights: Nights, error: str, *messages: Iterable[PgoutputMessage], name: str = "") -> None:
    """The night fails and changes nothing. Removes the file that caused the error."""
    before = nights.job.versions(), nights.ledger("batches")
    path = nights.land(*messages, name=name)
    with pytest.raises(PgoutputEtlError, match=error):
        nights.job.run()
    assert (nights.job.versions(), nights.ledger("batches")) == before
    path.unlink()


@pytest.mark.soak
def test_an_incomplete_or_mixed_archive_is_refused(nights: Nights) -> None:
    nights.night(transaction(10, 100, table(), insert("100", "x")), one(11, 200), one(13, 400))
    assert_stopped(nights, r"00.*: the commit at 0/12C of transaction 12 has a lower LSN .* not resent", one(12, 300))
    assert_stopped(
        nights, r"transaction 11 was committed at 0/1F4, and before that at 0/C8: .*two servers", one(11, 500)
    )
    assert_stopped(nights, r"Stream Commit at 0/1F4 of transaction 14, which is not whole", stream_commit(14, 500))
    assert_stopped(nights, r"no Relation message describes OID 7", transaction(14, 500, insert("1", oid=7)))
    # Resent transactions are accepted, alone and as part of a longer file.
    nights.night(one(11, 200), one(13, 400), one(14, 500))
    assert nights.values("t") == [("100", "x"), ("200", "x"), ("400", "x"), ("500", "x")]


@pytest.mark.soak
def test_a_missing_file_number_is_refused(nights: Nights) -> None:
    for number in range(3):
        nights.land(one(number, number + 100) if number else transaction(9, 50, table(), insert("50", "x")))
    nights.job.run()
    missing = r"between .*002\.copydata and .*004\.copydata a file is missing: .*source\.gaps: accept"
    assert_stopped(nights, missing, one(20, 200), name="004.copydata")
    nights.land(one(20, 200), name="004.copydata")
    nights.job.run("source.gaps=accept")
    assert len(nights.values("t")) == 4


@pytest.mark.soak
def test_another_servers_archive_in_the_same_folder_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    for ours, theirs in (("pg14", "pg16"), ("pg16", "pg14")):
        landing = tmp_path / ours / "landing"
        landing.mkdir(parents=True)
        job = Job(spark, tmp_path / ours, landing)
        for n, server in enumerate((ours, theirs)):
            source = next(path for path in sorted((CAPTURES / server / "v1").iterdir()))
            (landing / f"{n}.copydata").write_bytes(source.read_bytes())
        with pytest.raises(PgoutputEtlError, match="Is the file from another server or another slot"):
            job.run()
        assert job.versions() == {}

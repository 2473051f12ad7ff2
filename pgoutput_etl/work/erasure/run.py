"""Erases rows, or proves that they are gone."""

from __future__ import annotations

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.work.erasure.erase import archive_to_erase, erase
from pgoutput_etl.work.erasure.prove import prove
from pgoutput_etl.work.erasure.report import ForgetSummary, ProofSummary
from pgoutput_etl.work.erasure.request import ForgetRequest, read_erasure
from pgoutput_etl.work.erasure.storage import SparkStorage


def forget(
    spark: SparkSession, config: Config, request: ForgetRequest, progress: Progress = no_progress
) -> ForgetSummary | ProofSummary:
    """Returns a proof if requested, and otherwise the rows that were or would be erased. After a PgoutputEtlError,
    either nothing was changed, or a run with the same request finishes the erasure."""
    request.check()
    erasure = read_erasure(request.request)
    if request.prove:
        return prove(spark, config, erasure, progress)
    archive = archive_to_erase(spark, config, may_finish=request.execute)
    return erase(SparkStorage(archive), erasure, request.execute, progress)

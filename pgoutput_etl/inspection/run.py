"""Inspects files without Spark, for Python."""

from __future__ import annotations

from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.inspection.archive import inspect_archive
from pgoutput_etl.inspection.local_runner import is_local, list_local, local_runner
from pgoutput_etl.inspection.report import report_on
from pgoutput_etl.inspection.report_model import ArchiveReport
from pgoutput_etl.protocol.framing import Framing


def inspect(*paths: str, framing: Framing = Framing.AUTO, progress: Progress = no_progress) -> ArchiveReport:
    """Reports the contents of landed files: tables, transactions, and damage. paths: local files, folders, or globs.

    Raises ConfigError for other storage. An unreadable file is listed in the report.
    """
    for path in paths:
        if not is_local(path):
            raise ConfigError(f"{path}: expected a local path: jobs/inspect.py --spark reads others")
    with local_runner(framing) as runner:
        return report_on(inspect_archive(list_local(paths), runner, progress))

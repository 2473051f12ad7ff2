"""Writes a first configuration for a landing folder: framing, tables, and keys as its files show them.

Reads local files without Spark: all of them, or of a big archive the first and the newest. Nothing is guessed: what the
archive does not say, such as the key of a table with REPLICA IDENTITY FULL, is a comment to complete.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pgoutput_etl.answers.command_line import job_words
from pgoutput_etl.console import ProgressPrinter, counted
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.jobs.command import Command
from pgoutput_etl.standard_output import StandardOutput

if TYPE_CHECKING:
    from pgoutput_etl.answers.init.findings import ArchiveFindings

SAMPLED_BYTES = 1 << 27  # a local machine inspects these in seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("landing", metavar="LANDING", help="a local folder or glob with one slot's archive")
    add("--out", metavar="FILE", help="the file to write (default: standard output)")
    add("--force", action="store_true", help="replace the file if it exists")
    add("--quiet", action="store_true", help="print no progress to standard error")


def run(arguments: argparse.Namespace) -> int:
    from pgoutput_etl.answers.init.configuration import configuration, source_name

    out = None if arguments.out is None else Path(arguments.out)
    if out is not None and not arguments.force:
        _refuse_existing(out)
    findings = _findings(arguments.landing, ProgressPrinter(arguments.quiet))
    name = source_name(arguments.landing)
    text = configuration(arguments.landing, name, findings)
    if out is None:
        with StandardOutput():
            sys.stdout.write(text)
    else:
        _write(out, text, arguments.force)
        plan = shlex.join((*job_words("plan"), "--config", str(out)))
        print(f"Wrote {out}: {counted(len(findings.tables), 'table')}. To see what the first run would do:\n  {plan}")
    return quarantine_code(*findings.unreadable)


def _findings(landing: str, progress: ProgressPrinter) -> ArchiveFindings:
    from pgoutput_etl.answers.init.findings import archive_findings, sample
    from pgoutput_etl.inspection.archive import inspect_archive
    from pgoutput_etl.inspection.local_runner import LocalRunner, is_local, list_local
    from pgoutput_etl.landing.file_index import Listing

    if not is_local(landing):
        raise ConfigError(f"{landing}: expected a local folder: copy a few files here, then set source.landing")
    listing = list_local([landing])
    landed = listing.files()
    if not landed and not listing.not_plain:
        raise ConfigError(f"{landing}: expected one or more landed files")
    with (
        TemporaryDirectory(prefix="pgoutput-etl.") as folder,
        LocalRunner(Path(folder), processes=os.cpu_count() or 1) as runner,
    ):
        sampled = Listing.of(sample(landed, SAMPLED_BYTES), listing.not_plain)
        return archive_findings(landed, inspect_archive(sampled, runner, progress))


def _refuse_existing(out: Path) -> None:
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists: name another file, or replace it with --force")


def _write(out: Path, text: str, replaces: bool) -> None:
    try:
        with out.open("w" if replaces else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        _refuse_existing(out)
    except OSError as error:
        raise ConfigError(f"{out}: can't be written: {error.strerror}") from None


EXAMPLE = "python jobs/init.py tests/data/random16/v2 --out shop.yaml"

COMMAND = Command("init", __doc__, EXAMPLE, add_arguments, run)

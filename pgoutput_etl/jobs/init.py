"""Writes a first configuration for a landing folder: framing, tables, and keys as its files show them.

Reads local files without Spark: all of them, or of a big archive the first and the newest. Nothing is guessed: what the
archive does not say, such as the key of a table with REPLICA IDENTITY FULL, is a comment to complete.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pgoutput_etl.answers.command_line import job_words
from pgoutput_etl.console import ProgressPrinter, counted
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.jobs.command import Command, Quiet
from pgoutput_etl.options import FILE, Option, Value
from pgoutput_etl.standard_output import StandardOutput

if TYPE_CHECKING:
    from pgoutput_etl.answers.init.findings import ArchiveFindings

SAMPLED_BYTES = 1 << 27  # a local machine inspects these within seconds


@dataclass(frozen=True, slots=True)
class InitRequest:
    landing: Annotated[str, Option("a local folder or glob with one slot's archive", Value("LANDING"), "LANDING")]
    out: Annotated[str | None, Option("the file to write (default: standard output)", FILE)] = None
    force: Annotated[bool, Option("replace the file if it exists")] = False
    quiet: Quiet = False


def run(request: InitRequest) -> int:
    from pgoutput_etl.answers.init.configuration import configuration, source_name

    out = None if request.out is None else Path(request.out)
    if out is not None and not request.force:
        _refuse_existing(out)
    findings = _findings(request.landing, ProgressPrinter(request.quiet))
    name = source_name(request.landing)
    text = configuration(request.landing, name, findings)
    if out is None:
        with StandardOutput():
            sys.stdout.write(text)
    else:
        _write(out, text, request.force)
        plan = shlex.join((*job_words("plan"), "--config", str(out)))
        print(f"Wrote {out}: {counted(len(findings.tables), 'table')}. To see what the first run would do:\n  {plan}")
    return quarantine_code(*findings.unreadable)


def _findings(landing: str, progress: ProgressPrinter) -> ArchiveFindings:
    from pgoutput_etl.answers.init.findings import archive_findings, sample
    from pgoutput_etl.inspection.archive import inspect_archive
    from pgoutput_etl.inspection.local_runner import is_local, list_local, local_runner
    from pgoutput_etl.landing.file_index import Listing

    if not is_local(landing):
        raise ConfigError(f"{landing}: expected a local folder: copy a few files here, then set source.landing")
    listing = list_local([landing])
    landed = listing.files()
    if not landed and not listing.not_plain:
        raise ConfigError(f"{landing}: expected one or more landed files")
    with local_runner() as runner:
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


EXAMPLE = "python jobs/init.py notebooks/data/shop --out shop.yaml"

COMMAND = Command("init", __doc__, EXAMPLE, (InitRequest,), run)

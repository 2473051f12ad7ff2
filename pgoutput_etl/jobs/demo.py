"""Turns the archive of a small shop into Delta tables in a new folder, and says what to try with them."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import yaml

from pgoutput_etl.answers.command_line import job_words
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.installed_files import SHOP_ARCHIVE, installed_files
from pgoutput_etl.jobs.command import Command, OutputOptions, PrintedReport, session
from pgoutput_etl.options import FOLDER, Option

if TYPE_CHECKING:
    from pgoutput_etl.work.files.report import RunReport

# In the archive, a clean-up job deletes an order in this transaction.
DELETED, BAD_DEPLOY = 137, 2175


@dataclass(frozen=True, slots=True)
class DemoRequest:
    out: Annotated[str, Option("a new folder for files, configuration, and tables", FOLDER)] = "pgoutput-etl-demo"


def run(request: DemoRequest, output: OutputOptions) -> int:
    folder = Path(request.out)
    file = _prepare(folder)
    report = _applied(load_config(str(file)), output)
    return PrintedReport(report, lambda: _print(report, folder, file)).write(output)


def _prepare(folder: Path) -> Path:
    """Creates the configuration file and returns its path."""
    files = [*installed_files(SHOP_ARCHIVE)]
    if not files:
        raise ConfigError("the demo's archive is not installed: run make demo in a clone")
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(f"{folder} exists: remove it, or name another folder with --out") from None
    landing = folder / "landing"
    landing.mkdir()
    for path in files:
        shutil.copyfile(path, landing / path.name)
    here, file = folder.resolve(), folder / "shop.yaml"
    source = {"name": "shop", "landing": str(here / "landing"), "snapshot": "accept"}
    settings = {"source": source, "target": {"root": str(here / "tables"), "readers": "auto"}}
    file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return file


def _applied(config: Config, output: OutputOptions) -> RunReport:
    from pgoutput_etl.work.files.pipeline import apply
    from pgoutput_etl.work.files.report import RunReport

    with session("demo", config, is_light=True) as spark:
        return RunReport(apply(spark, config, ProgressPrinter(output.quiet)))


def _print(report: RunReport, folder: Path, file: Path) -> None:
    from pgoutput_etl.work.files.report import print_run

    print_run(report)
    config, undo = ("--config", str(file)), str(folder / "undo")
    before = ("--at", f"before:{BAD_DEPLOY}", "--where", f"id = {DELETED}")
    show = shlex.join((*job_words("show"), "public.orders", *config, *before))
    restore = shlex.join((*job_words("undo"), *config, "--xid", str(BAD_DEPLOY), "--out", undo))
    print(f"A clean-up job deleted order {DELETED} in transaction {BAD_DEPLOY}. As it was, and SQL that restores it:")
    print(f"  {show}\n  {restore}")


EXAMPLE = "./spark-submit.sh jobs/demo.py --out shop"

COMMAND = Command("demo", __doc__, EXAMPLE, (DemoRequest, OutputOptions), run)

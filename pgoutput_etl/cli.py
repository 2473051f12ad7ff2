"""The installed command: `pgoutput-etl JOB …`. Options may precede the job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import click

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_USAGE
from pgoutput_etl.jobs.command import Command

# A job's module is imported only when the job runs: importing Spark takes a second, and inspect doesn't need it.
JOBS = {
    "demo": "turn the archive of a small shop into Delta tables, to try the other jobs",
    "start": "prepare a server, load its tables, and apply what has landed",
    "init": "write a configuration for a landing folder",
    "validate": "check a configuration, and list every mistake in it",
    "apply": "bring every Delta table to the last commit in the archive",
    "plan": "report what apply would do; write nothing",
    "inspect": "report what landed files contain",
    "status": "report the last batch, its age, waiting files and held tables, within seconds",
    "backfill": "rebuild tables from the archive",
    "snapshot": "load rows from before the slot",
    "verify": "compare tables with PostgreSQL",
    "maintain": "keep tables and ledger fast and small",
    "show": "print rows of a table, as of any commit",
    "export": "write tables as of any commit for PostgreSQL to load",
    "undo": "write SQL that undoes transactions on the server",
    "forget": "erase rows from landed files, tables, and the ledger",
}


def command(job: str) -> Command:
    job_command = import_module(f"pgoutput_etl.jobs.{job}").COMMAND
    assert isinstance(job_command, Command)
    return job_command


class _Jobs(click.Group):
    """Used for help, completion, and errors. `main` runs the jobs."""

    def list_commands(self, _: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        is_completion = ctx.resilient_parsing
        return command(name).parser() if is_completion and name in JOBS else None

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Jobs"):
            formatter.write_dl(list(JOBS.items()))


@click.group(
    cls=_Jobs,
    subcommand_metavar="JOB …",
    epilog="pgoutput-etl JOB --help lists its options.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="pgoutput_etl", message="%(version)s")
def _jobs() -> None:
    pass


def _place_of_job(given: Sequence[str]) -> int | None:
    """The position of the job, which may follow some of its options. Their values may also be names of jobs."""
    for place, word in enumerate(given):
        if word in JOBS and (place == 0 or command(word).parser().takes(given[:place])):
            return place
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    place = _place_of_job(given)
    if place is None:
        try:
            _jobs.main(given, "pgoutput-etl", standalone_mode=False)
        except click.UsageError as error:
            error.show()
            return EXIT_USAGE
        return EXIT_DONE
    job, options = given[place], [*given[:place], *given[place + 1 :]]
    return command(job).main(f"pgoutput-etl {job}", options)

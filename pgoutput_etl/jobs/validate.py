"""Checks a configuration and reports what it holds, or every mistake in it, without Spark.

Reads the file and the environment's variables, and nothing else: no archive, no ledger, no server.
"""

from __future__ import annotations

from pgoutput_etl.jobs.command import Command, OutputOptions, PrintedReport, SourceOptions

EXAMPLE = "python jobs/validate.py --config conf/demo.yaml"


def run(source: SourceOptions, output: OutputOptions) -> int:
    from pgoutput_etl.answers.settings.validate import print_validation, validate

    return PrintedReport.of(validate(source.config, source.overrides), print_validation).write(output)


COMMAND = Command("validate", __doc__, EXAMPLE, (SourceOptions, OutputOptions), run)

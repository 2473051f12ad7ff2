"""Checks a configuration and reports what it holds, or every mistake in it, without Spark.

Reads the file and the environment's variables, and nothing else: no archive, no ledger, no server.
"""

from __future__ import annotations

from pgoutput_etl.jobs.command import Command, OutputOptions, SourceOptions
from pgoutput_etl.standard_output import StandardOutput

EXAMPLE = "python jobs/validate.py --config conf/demo.yaml"


def run(source: SourceOptions, output: OutputOptions) -> int:
    from pgoutput_etl.answers.settings.validate import print_validation, validate

    found = validate(source.config, source.overrides)
    with StandardOutput():
        if output.json:
            print(found.to_json())
        else:
            print_validation(found)
    return found.exit_code


COMMAND = Command("validate", __doc__, EXAMPLE, (SourceOptions, OutputOptions), run)

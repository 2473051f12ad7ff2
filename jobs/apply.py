"""The nightly job: brings every Delta table to the last commit in the archive."""

from __future__ import annotations

import argparse
import sys

from pgoutput_etl.config import load_config, refuse_unbuilt
from pgoutput_etl.errors import ConfigError, PgoutputEtlError
from pgoutput_etl.metrics import Measuring, check
from pgoutput_etl.pipeline import apply
from pgoutput_etl.report import EXIT_FAILED, EXIT_USAGE, Progress, print_error, print_summary, to_json
from pgoutput_etl.spark import start_session

EXAMPLE = "example: ./spark-submit.sh jobs/apply.py --config conf/local.yaml --set target.root=/data/shop"


def main() -> int:
    parser = argparse.ArgumentParser(prog="jobs/apply.py", description=__doc__, allow_abbrev=False, epilog=EXAMPLE)
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file: where from, where to")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one of its keys")
    parser.add_argument("--json", action="store_true", help="print the summary for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress on standard error")
    arguments = parser.parse_args()
    measuring = None
    try:
        config = load_config(arguments.config, arguments.set)
        refuse_unbuilt(config)
        check(config.metrics)
        measuring = Measuring(config.source.name, config.metrics)
        spark = start_session(f"pgoutput_etl apply {config.source.name}", config.spark, config.secrets)
        try:
            summaries = apply(spark, config, Progress(arguments.quiet), measuring.stages)
        finally:
            spark.stop()
    except PgoutputEtlError as error:
        print_error(error)
        code = EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
        if measuring is not None:
            measuring.failed(error, code)
        return code
    except Exception as error:
        if measuring is not None:
            measuring.failed(error, EXIT_FAILED)
        raise
    measuring.done(summaries)
    if arguments.json:
        print(to_json(summaries))
    else:
        for summary in summaries:
            print_summary(summary)
    return summaries[-1].exit_code


if __name__ == "__main__":
    sys.exit(main())

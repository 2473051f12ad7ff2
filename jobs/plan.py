"""Says what the nightly job would do now, and writes nothing."""

from __future__ import annotations

import argparse
import sys

from pgoutput_etl.config import load_config, refuse_unbuilt
from pgoutput_etl.errors import ConfigError, PgoutputEtlError
from pgoutput_etl.plan_report import print_plan
from pgoutput_etl.planning import plan
from pgoutput_etl.report import EXIT_FAILED, EXIT_USAGE, Progress, print_error
from pgoutput_etl.spark import start_session

EXAMPLE = "example: ./spark-submit.sh jobs/plan.py --config conf/local.yaml"


def main() -> int:
    parser = argparse.ArgumentParser(prog="jobs/plan.py", description=__doc__, allow_abbrev=False, epilog=EXAMPLE)
    parser.add_argument("--config", required=True, metavar="FILE", help="the YAML file: where from, where to")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one of its keys")
    parser.add_argument("--json", action="store_true", help="print the plan for programs")
    parser.add_argument("--quiet", action="store_true", help="show no progress on standard error")
    arguments = parser.parse_args()
    try:
        config = load_config(arguments.config, arguments.set)
        refuse_unbuilt(config)
        spark = start_session(f"pgoutput_etl plan {config.source.name}", config.spark, config.secrets)
        try:
            summary = plan(spark, config, Progress(arguments.quiet))
        finally:
            spark.stop()
    except PgoutputEtlError as error:
        print_error(error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILED
    if arguments.json:
        print(summary.to_json())
    else:
        print_plan(summary)
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main())

"""Reports what the nightly job would do now; writes nothing."""

from __future__ import annotations

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.jobs.command import NoOptions, OutputOptions, PrintedReport, job_command, session

EXAMPLE = "./spark-submit.sh jobs/plan.py --config conf/demo.yaml"


def _plan(_: NoOptions, config: Config, output: OutputOptions) -> PrintedReport:
    from pgoutput_etl.answers.next_commands import inspected
    from pgoutput_etl.work.plan.report import print_plan
    from pgoutput_etl.work.plan.run import plan

    with session("plan", config) as spark, inspected(config):
        return PrintedReport.of(plan(spark, config, ProgressPrinter(output.quiet)), print_plan)


COMMAND = job_command("plan", __doc__, EXAMPLE, NoOptions, _plan)

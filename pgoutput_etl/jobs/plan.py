"""Reports what a run would do now; writes nothing.

--explain reports the settings of a table instead, without Spark, and the line of the file that gives each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import ProgressPrinter
from pgoutput_etl.jobs.command import OutputOptions, PrintedReport, job_command, session
from pgoutput_etl.jobs.each_source import SourceUse
from pgoutput_etl.options import Option, Value

EXAMPLE = "./spark-submit.sh jobs/plan.py --config conf/demo.yaml"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    explain: Annotated[
        str | None, Option("report the settings of schema.table, and where they come from", Value("TABLE"))
    ] = None

    def check(self) -> None:
        pass


def _plan(request: PlanRequest, config: Config, output: OutputOptions) -> PrintedReport:
    if request.explain is not None:
        from pgoutput_etl.answers.settings.explain import explain, print_settings

        return PrintedReport.of(explain(config, request.explain), print_settings)
    from pgoutput_etl.answers.next_commands import inspected
    from pgoutput_etl.work.files.light_work import is_light
    from pgoutput_etl.work.plan.report import print_plan
    from pgoutput_etl.work.plan.run import plan

    with session("plan", config, is_light(config)) as spark, inspected(config):
        return PrintedReport.of(plan(spark, config, ProgressPrinter(output.quiet)), print_plan)


EACH_SOURCE: SourceUse[PlanRequest] = SourceUse(lambda _: False)

COMMAND = job_command("plan", __doc__, EXAMPLE, PlanRequest, _plan, sources=EACH_SOURCE)

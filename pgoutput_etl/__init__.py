"""Turns archives of PostgreSQL logical replication (pgoutput) into Delta tables, in batches, on Spark.

Each public name is imported when it is first used, so that `import pgoutput_etl` starts neither Spark nor the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgoutput_etl.compression import decompress as decompress
    from pgoutput_etl.config.settings import Config as Config
    from pgoutput_etl.config.settings import load_config as load_config
    from pgoutput_etl.errors import PgoutputEtlError as PgoutputEtlError
    from pgoutput_etl.explore.archive import read_archive as read_archive
    from pgoutput_etl.jobs.apply.pipeline import apply as apply
    from pgoutput_etl.jobs.apply.report import RunSummary as RunSummary
    from pgoutput_etl.jobs.apply.report import print_summary as print_summary
    from pgoutput_etl.jobs.backfill.report import BackfillSummary as BackfillSummary
    from pgoutput_etl.jobs.backfill.report import print_backfill as print_backfill
    from pgoutput_etl.jobs.backfill.request import BackfillRequest as BackfillRequest
    from pgoutput_etl.jobs.backfill.run import backfill as backfill
    from pgoutput_etl.jobs.plan.report import PlanSummary as PlanSummary
    from pgoutput_etl.jobs.plan.report import print_plan as print_plan
    from pgoutput_etl.jobs.plan.run import plan as plan
    from pgoutput_etl.jobs.verify.report import VerifySummary as VerifySummary
    from pgoutput_etl.jobs.verify.report import print_verification as print_verification
    from pgoutput_etl.jobs.verify.request import VerifyRequest as VerifyRequest
    from pgoutput_etl.jobs.verify.run import verify as verify
    from pgoutput_etl.ledger.as_of import consistent_points as consistent_points
    from pgoutput_etl.ledger.as_of import tables_at as tables_at
    from pgoutput_etl.lsn import format_lsn as format_lsn
    from pgoutput_etl.lsn import parse_lsn as parse_lsn
    from pgoutput_etl.protocol.decoder import decode as decode
    from pgoutput_etl.protocol.framing import Framing as Framing
    from pgoutput_etl.protocol.framing import detect as detect
    from pgoutput_etl.protocol.framing import frames as frames
    from pgoutput_etl.replay.mirror import Replay as Replay
    from pgoutput_etl.spark.session import start_session as start_session
    from pgoutput_etl.types import column_type as column_type
    from pgoutput_etl.types import load_text as load_text

__version__ = "0.1.0"

_MODULES = {
    "read_archive": "explore.archive",
    "Replay": "replay.mirror",
    "start_session": "spark.session",
    "load_config": "config.settings",
    "Config": "config.settings",
    "apply": "jobs.apply.pipeline",
    "RunSummary": "jobs.apply.report",
    "print_summary": "jobs.apply.report",
    "plan": "jobs.plan.run",
    "PlanSummary": "jobs.plan.report",
    "print_plan": "jobs.plan.report",
    "backfill": "jobs.backfill.run",
    "BackfillRequest": "jobs.backfill.request",
    "BackfillSummary": "jobs.backfill.report",
    "print_backfill": "jobs.backfill.report",
    "verify": "jobs.verify.run",
    "VerifyRequest": "jobs.verify.request",
    "VerifySummary": "jobs.verify.report",
    "print_verification": "jobs.verify.report",
    "tables_at": "ledger.as_of",
    "consistent_points": "ledger.as_of",
    "decompress": "compression",
    "Framing": "protocol.framing",
    "detect": "protocol.framing",
    "frames": "protocol.framing",
    "decode": "protocol.decoder",
    "column_type": "types",
    "load_text": "types",
    "parse_lsn": "lsn",
    "format_lsn": "lsn",
    "PgoutputEtlError": "errors",
}


if not TYPE_CHECKING:  # else any name would pass as one of the package

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*globals(), *_MODULES]

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
    from pgoutput_etl.jobs.forget.report import ForgetSummary as ForgetSummary
    from pgoutput_etl.jobs.forget.report import ProofSummary as ProofSummary
    from pgoutput_etl.jobs.forget.report import print_forget as print_forget
    from pgoutput_etl.jobs.forget.request import ForgetRequest as ForgetRequest
    from pgoutput_etl.jobs.forget.run import forget as forget
    from pgoutput_etl.jobs.moment.bisect import FirstCommit as FirstCommit
    from pgoutput_etl.jobs.moment.bisect import bisect as bisect
    from pgoutput_etl.jobs.moment.read import read_at as read_at
    from pgoutput_etl.jobs.plan.report import PlanSummary as PlanSummary
    from pgoutput_etl.jobs.plan.report import print_plan as print_plan
    from pgoutput_etl.jobs.plan.run import plan as plan
    from pgoutput_etl.jobs.undo.report import UndoSummary as UndoSummary
    from pgoutput_etl.jobs.undo.report import print_undo as print_undo
    from pgoutput_etl.jobs.undo.request import UndoRequest as UndoRequest
    from pgoutput_etl.jobs.undo.run import undo as undo
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

_NAMES = {
    "compression": ["decompress"],
    "config.settings": ["Config", "load_config"],
    "errors": ["PgoutputEtlError"],
    "explore.archive": ["read_archive"],
    "jobs.apply.pipeline": ["apply"],
    "jobs.apply.report": ["RunSummary", "print_summary"],
    "jobs.backfill.report": ["BackfillSummary", "print_backfill"],
    "jobs.backfill.request": ["BackfillRequest"],
    "jobs.backfill.run": ["backfill"],
    "jobs.forget.report": ["ForgetSummary", "ProofSummary", "print_forget"],
    "jobs.forget.request": ["ForgetRequest"],
    "jobs.forget.run": ["forget"],
    "jobs.moment.bisect": ["FirstCommit", "bisect"],
    "jobs.moment.read": ["read_at"],
    "jobs.plan.report": ["PlanSummary", "print_plan"],
    "jobs.plan.run": ["plan"],
    "jobs.undo.report": ["UndoSummary", "print_undo"],
    "jobs.undo.request": ["UndoRequest"],
    "jobs.undo.run": ["undo"],
    "jobs.verify.report": ["VerifySummary", "print_verification"],
    "jobs.verify.request": ["VerifyRequest"],
    "jobs.verify.run": ["verify"],
    "ledger.as_of": ["consistent_points", "tables_at"],
    "lsn": ["format_lsn", "parse_lsn"],
    "protocol.decoder": ["decode"],
    "protocol.framing": ["Framing", "detect", "frames"],
    "replay.mirror": ["Replay"],
    "spark.session": ["start_session"],
    "types": ["column_type", "load_text"],
}

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # else any name would pass as one of the package

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*globals(), *_MODULES]

"""Turns archives of PostgreSQL logical replication (pgoutput) into Delta tables, in batches, on Spark.

Each public name is imported on first use, so `import pgoutput_etl` starts neither Spark nor the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgoutput_etl.answers.export.report import ExportSummary as ExportSummary
    from pgoutput_etl.answers.export.report import print_export as print_export
    from pgoutput_etl.answers.export.request import ExportRequest as ExportRequest
    from pgoutput_etl.answers.export.run import export as export
    from pgoutput_etl.answers.inspection_report import print_report as print_report
    from pgoutput_etl.answers.moment.bisect import FirstCommit as FirstCommit
    from pgoutput_etl.answers.moment.bisect import bisect as bisect
    from pgoutput_etl.answers.moment.read import read_at as read_at
    from pgoutput_etl.answers.moment.show import show as show
    from pgoutput_etl.answers.status.report import Status as Status
    from pgoutput_etl.answers.status.report import print_status as print_status
    from pgoutput_etl.answers.status.request import StatusRequest as StatusRequest
    from pgoutput_etl.answers.status.run import status as status
    from pgoutput_etl.answers.undo.report import UndoSummary as UndoSummary
    from pgoutput_etl.answers.undo.report import print_undo as print_undo
    from pgoutput_etl.answers.undo.request import UndoRequest as UndoRequest
    from pgoutput_etl.answers.undo.run import undo as undo
    from pgoutput_etl.answers.verify.report import VerifySummary as VerifySummary
    from pgoutput_etl.answers.verify.report import print_verification as print_verification
    from pgoutput_etl.answers.verify.request import VerifyRequest as VerifyRequest
    from pgoutput_etl.compression import decompress as decompress
    from pgoutput_etl.config.settings import Config as Config
    from pgoutput_etl.config.settings import load_config as load_config
    from pgoutput_etl.datasource.source import register as register
    from pgoutput_etl.errors import PgoutputEtlError as PgoutputEtlError
    from pgoutput_etl.explore.archive import read_archive as read_archive
    from pgoutput_etl.inspection.report_model import ArchiveReport as ArchiveReport
    from pgoutput_etl.inspection.run import inspect as inspect
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
    from pgoutput_etl.work.backfill.report import BackfillSummary as BackfillSummary
    from pgoutput_etl.work.backfill.report import print_backfill as print_backfill
    from pgoutput_etl.work.backfill.request import BackfillRequest as BackfillRequest
    from pgoutput_etl.work.backfill.run import backfill as backfill
    from pgoutput_etl.work.erasure.report import ForgetSummary as ForgetSummary
    from pgoutput_etl.work.erasure.report import ProofSummary as ProofSummary
    from pgoutput_etl.work.erasure.report import print_forget as print_forget
    from pgoutput_etl.work.erasure.request import ForgetRequest as ForgetRequest
    from pgoutput_etl.work.erasure.run import forget as forget
    from pgoutput_etl.work.files.pipeline import apply as apply
    from pgoutput_etl.work.files.report import RunSummary as RunSummary
    from pgoutput_etl.work.files.report import print_summary as print_summary
    from pgoutput_etl.work.plan.report import PlanSummary as PlanSummary
    from pgoutput_etl.work.plan.report import print_plan as print_plan
    from pgoutput_etl.work.plan.run import plan as plan
    from pgoutput_etl.work.snapshot.report import SnapshotSummary as SnapshotSummary
    from pgoutput_etl.work.snapshot.report import print_snapshot as print_snapshot
    from pgoutput_etl.work.snapshot.request import SnapshotRequest as SnapshotRequest
    from pgoutput_etl.work.snapshot.run import snapshot as snapshot
    from pgoutput_etl.work.snapshot.settled import verify as verify
    from pgoutput_etl.work.start.report import StartSummary as StartSummary
    from pgoutput_etl.work.start.report import print_start as print_start
    from pgoutput_etl.work.start.request import StartRequest as StartRequest
    from pgoutput_etl.work.start.run import start as start
    from pgoutput_etl.work.upkeep.report import MaintainSummary as MaintainSummary
    from pgoutput_etl.work.upkeep.report import print_maintenance as print_maintenance
    from pgoutput_etl.work.upkeep.request import MaintainRequest as MaintainRequest
    from pgoutput_etl.work.upkeep.run import maintain as maintain

__version__ = "0.2.0"

_NAMES = {
    "answers.export.report": ["ExportSummary", "print_export"],
    "answers.export.request": ["ExportRequest"],
    "answers.export.run": ["export"],
    "answers.inspection_report": ["print_report"],
    "answers.moment.bisect": ["FirstCommit", "bisect"],
    "answers.moment.read": ["read_at"],
    "answers.moment.show": ["show"],
    "answers.status.report": ["Status", "print_status"],
    "answers.status.request": ["StatusRequest"],
    "answers.status.run": ["status"],
    "answers.undo.report": ["UndoSummary", "print_undo"],
    "answers.undo.request": ["UndoRequest"],
    "answers.undo.run": ["undo"],
    "answers.verify.report": ["VerifySummary", "print_verification"],
    "answers.verify.request": ["VerifyRequest"],
    "compression": ["decompress"],
    "config.settings": ["Config", "load_config"],
    "datasource.source": ["register"],
    "errors": ["PgoutputEtlError"],
    "explore.archive": ["read_archive"],
    "inspection.report_model": ["ArchiveReport"],
    "inspection.run": ["inspect"],
    "ledger.as_of": ["consistent_points", "tables_at"],
    "lsn": ["format_lsn", "parse_lsn"],
    "protocol.decoder": ["decode"],
    "protocol.framing": ["Framing", "detect", "frames"],
    "replay.mirror": ["Replay"],
    "spark.session": ["start_session"],
    "types": ["column_type", "load_text"],
    "work.backfill.report": ["BackfillSummary", "print_backfill"],
    "work.backfill.request": ["BackfillRequest"],
    "work.backfill.run": ["backfill"],
    "work.erasure.report": ["ForgetSummary", "ProofSummary", "print_forget"],
    "work.erasure.request": ["ForgetRequest"],
    "work.erasure.run": ["forget"],
    "work.files.pipeline": ["apply"],
    "work.files.report": ["RunSummary", "print_summary"],
    "work.plan.report": ["PlanSummary", "print_plan"],
    "work.plan.run": ["plan"],
    "work.snapshot.report": ["SnapshotSummary", "print_snapshot"],
    "work.snapshot.request": ["SnapshotRequest"],
    "work.snapshot.run": ["snapshot"],
    "work.snapshot.settled": ["verify"],
    "work.start.report": ["StartSummary", "print_start"],
    "work.start.request": ["StartRequest"],
    "work.start.run": ["start"],
    "work.upkeep.report": ["MaintainSummary", "print_maintenance"],
    "work.upkeep.request": ["MaintainRequest"],
    "work.upkeep.run": ["maintain"],
}

_MODULES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # otherwise, any name would seem to be in the package

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return [*globals(), *_MODULES]

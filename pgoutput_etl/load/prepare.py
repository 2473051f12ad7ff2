"""What a batch will do, found out before anything is written: what `apply` goes on from, and `plan` tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.column_rules import changed_masks
from pgoutput_etl.config.settings import Config
from pgoutput_etl.ingest.assemble import assemble
from pgoutput_etl.ingest.landed_files import FileBatch
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ingest.source_check import check_history
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch, PriorState
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.load.writer import refuse_existing_rows
from pgoutput_etl.masking.mask_rows import MaskingPolicy
from pgoutput_etl.masking.policy import masking_policy_of
from pgoutput_etl.targets.batch_plan import BatchPlan, plan_batch, refuse_other_settings
from pgoutput_etl.targets.plan import tables_ahead
from pgoutput_etl.targets.planner import Name
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.types import UserTypes


@dataclass(frozen=True, slots=True)
class Prepared:
    """before: what the ledger knew before the batch."""

    rows: MessageRows
    prior: PriorState
    plan: BatchPlan


def prepare(
    spark: SparkSession, config: Config, ledger: Ledger, batch: Batch, landed: FileBatch, assembly: Assembly
) -> Prepared:
    """Puts the batch's files together in `assembly`. Writes nothing. Raises ArchiveError or RunError for what the batch
    can't be applied for."""
    path_of = partial(ledger.path_of, batch)
    assembly.origins = config.source.origins
    before = ledger.prior_state(assembly)
    ahead = tables_ahead(batch.tables, assembly.last_commit_lsn)
    waiting, done_to_waiting = ledger.open_rows(assembly, batch), ledger.masks_of_open_rows(assembly, batch)
    assemble(landed.blocks, landed.scan_output, batch.paths, assembly)
    user_types = UserTypes.of(assembly.types.values(), config.types)
    protected = masking_policy_of(config, assembly, user_types)
    if not all(_is_as_now(protected, assembly, *done) for done in done_to_waiting):
        waiting = LedgerArchive(spark, config, ledger, batch).waiting(before.open_units, protected)
    assembly.relations.mask = protected
    rows = MessageRows(spark, landed.masked(protected), waiting, landed.inspected, assembly)
    if assembly.needs_history:
        earlier = ledger.read("transactions").where(F.col("batch") < batch.number)
        check_history(partial(ledger.ended, batch, rows), earlier, assembly, path_of)

    if batch.resumed and batch.settings is not None:
        refuse_other_settings(batch.settings, config, _names(assembly, batch), batch.number)
    planned = plan_batch(config, assembly, rows, batch.tables, ahead, path_of)
    if not batch.resumed:
        refuse_existing_rows(spark, planned.tables)
    return Prepared(rows, before, planned)


def _names(assembly: Assembly, batch: Batch) -> set[Name]:
    """Under which a table may be written."""
    relations = [entry.relation for entry in assembly.relations.entries]
    relations += [state.relation for state in batch.tables.values()]
    return {(relation.namespace, relation.name) for relation in relations}


def _is_as_now(protected: MaskingPolicy | None, assembly: Assembly, oid: int, then: Mapping[str, str]) -> bool:
    """Whether changes of a relation that wait had done to them what the configuration asks for."""
    if oid not in assembly.relations.oids():
        return not then  # nothing describes them: they are kept as nothing, or were kept as they are
    versions, _ = assembly.relations.unmasked(oid)
    clear = {column.name for relation in versions.relations for column in relation.columns} - then.keys()
    return not changed_masks(then, frozenset(clear), {} if protected is None else protected.masks_of(oid))

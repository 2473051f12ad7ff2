"""What a batch will do, found out before anything is written: what `apply` goes on from, and `plan` tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.assembling import Rows, assemble, behind, committed, count_changes, counted_changes, find_runs
from pgoutput_etl.config import Config
from pgoutput_etl.continuity import check_history
from pgoutput_etl.cuts import Cut
from pgoutput_etl.ledger import Batch, Known, Ledger
from pgoutput_etl.quarantine import before_cuts, find_cuts
from pgoutput_etl.relations import Run
from pgoutput_etl.sources import Landed
from pgoutput_etl.tallies import Tally
from pgoutput_etl.targets import Plan, changed_on_the_way, make_plan, tables_ahead
from pgoutput_etl.transactions import Assembly
from pgoutput_etl.types import UserTypes
from pgoutput_etl.writing import refuse_strangers


@dataclass(frozen=True, slots=True)
class Prepared:
    """before: what the ledger knew before the batch. tally: of all rows, as if no table were held."""

    rows: Rows
    before: Known
    tally: Tally
    cuts: Mapping[int, Cut]
    plan: Plan


def prepare(
    spark: SparkSession, config: Config, ledger: Ledger, batch: Batch, landed: Landed, assembly: Assembly
) -> Prepared:
    """Puts the batch's files together in `assembly`. Writes nothing. Raises ArchiveError or RunError for what the batch
    can't be applied for."""
    path_of = partial(ledger.path_of, batch)
    assembly.origins = config.source.origins
    before = ledger.known(assembly)
    ahead = tables_ahead(batch.tables, assembly.last_commit_lsn)
    rows = Rows(spark, landed.blocks, ledger.open_rows(assembly, batch), landed.looked_at, assembly)
    assemble(landed.blocks, landed.scanned, batch.paths, assembly)
    if assembly.looks_back:
        earlier = ledger.read("transactions").where(F.col("batch") < batch.number)
        check_history(partial(ledger.ended, batch, rows), earlier, assembly, path_of)

    tally = rows.tally()
    if tally.last_commit is not None:
        assembly.see_commit(*tally.last_commit)
    cuts = find_cuts(rows.fated_changes(), assembly, batch.tables, path_of) if assembly.was_damaged else {}
    changes = counted_changes(tally)
    if cuts:
        changes = count_changes(before_cuts(spark, committed(rows.fated_changes()), cuts))
    if not ahead.keys().isdisjoint(changes):
        news = behind(before_cuts(spark, committed(rows.fated_changes(ahead)), cuts), ahead)
        changes = {oid: each for oid, each in changes.items() if oid not in ahead} | count_changes(news)
    suspects = changed_on_the_way(assembly, changes, batch.tables, batch.first_file)
    runs: dict[int, list[Run]] = {}
    if suspects:
        of_suspects = behind(before_cuts(spark, committed(rows.fated_changes(suspects)), cuts), ahead)
        runs = find_runs(of_suspects, assembly.relations, suspects)
    user_types = UserTypes.of(assembly.types.values(), config.types)
    plan = make_plan(config, assembly.relations, changes, batch.tables, runs, user_types, cuts, ahead)
    if not batch.resumed:
        refuse_strangers(spark, plan)
    return Prepared(rows, before, tally, cuts, plan)

"""Checks that an erasure is complete: searches messages, rows, and all bytes, and replays the archive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.moment.read import MomentReader
from pgoutput_etl.answers.verify.row_text import delta_texts, text_names
from pgoutput_etl.changes.row_search import RowSearch
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted
from pgoutput_etl.identifiers import is_within, quoted
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.schema.table_shape import TableColumn, table_columns
from pgoutput_etl.spark.delta import folder_of, is_delta_table
from pgoutput_etl.targets.modes import METADATA_COLUMNS, added_columns
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.types.canonical_text import ComparedColumn
from pgoutput_etl.work.erasure.byte_search import ByteSearch
from pgoutput_etl.work.erasure.erase import archive_to_erase, searches_of, targets_of, write_other_keys
from pgoutput_etl.work.erasure.find import FoundChanges, find_changes, find_messages
from pgoutput_etl.work.erasure.other_keys import OtherKeysFile
from pgoutput_etl.work.erasure.remains import remains
from pgoutput_etl.work.erasure.report import OtherKeys, ProofSummary, ProvenTable, Remnant
from pgoutput_etl.work.erasure.request import Erasure, is_searched
from pgoutput_etl.work.erasure.snapshot_files import SnapshotFiles
from pgoutput_etl.work.erasure.storage import ErasedTarget, SparkStorage


def prove(spark: SparkSession, config: Config, erasure: Erasure, progress: Progress) -> ProofSummary:
    """Changes nothing, except that it writes the file of other keys if it finds rows that have some. Raises
    PgoutputEtlError."""
    archive = archive_to_erase(spark, config)
    searches = searches_of(archive, erasure.tables)
    targets = targets_of(SparkStorage(archive), searches)
    progress("looking for changes and rows")
    found_changes = find_changes(archive, searches, [target.other_keys() for target in targets])
    others = write_other_keys(archive, erasure, found_changes) if found_changes.other_keys else None
    remnants = [*_decoded(archive, erasure, found_changes, targets)]
    search = ByteSearch(spark, _spelled(erasure.texts, searches.values()))
    landed = {file.path: file.size for file in archive.landing.listing().files()}
    for wanted in erasure.snapshots:
        files = SnapshotFiles.of(archive, searches, wanted)
        landed |= files.sizes
        remnants += [Remnant(file.path, "rows in a snapshot's file", len(file.rows)) for file in files.planned()]
    progress(f"searching {counted(len(landed), 'landed file')}")
    remnants += search.landed(landed)
    folders = _folders(archive, searches)
    progress(f"searching {counted(len(folders), 'folder')} of tables and the ledger")
    stored, found = search.folders(folders)
    progress("replaying the archive")
    return ProofSummary(
        archive.ledger.source,
        erasure.reference,
        len(landed) + len(stored),
        sum(landed.values()) + sum(stored.values()),
        len(erasure.texts),
        tuple(_compared(archive, [target.state for target in targets])),
        (*remnants, *found),
        (*remains(archive, searches.keys()), *_left_over(erasure, others)),
        others,
    )


def _left_over(erasure: Erasure, found: OtherKeys | None) -> Iterator[str]:
    """A text about rows with other keys that an earlier erasure found but did not erase, if any. found: the keys that
    the proof itself found."""
    file = OtherKeysFile.of(erasure.file)
    if found is None and file.path.exists():
        yield (
            f"rows with the keys in {file.path}, which the request does not name: erase them, too, or delete the file "
            "if others had these keys"
        )


def _spelled(texts: Iterable[str], searches: Iterable[RowSearch]) -> dict[str, int]:
    """The request's texts, as given and as PostgreSQL prints them, each with its number in the request."""
    numbers = {text: number for number, text in enumerate(texts, 1)}
    for search in searches:
        for text, printed in search.spellings():
            if text in numbers and is_searched(printed):
                numbers.setdefault(printed, numbers[text])
    return numbers


def _decoded(
    archive: DeltaArchive, erasure: Erasure, found: FoundChanges, targets: Iterable[ErasedTarget]
) -> Iterator[Remnant]:
    for oid, count in found.counts.items():
        yield Remnant(archive.name(oid), "changes in landed files", count)
    for target in targets:
        count = target.count()
        if count:
            yield Remnant(target.state.full_name, "rows in the target", count)
    messages = len(find_messages(archive, erasure.is_chosen)) if erasure.messages else 0
    if messages:
        yield Remnant("landed files", "Messages", messages)


def _folders(archive: DeltaArchive, oids: Iterable[int]) -> list[str]:
    """The ledger's folder, and all places of the tables that are not below it."""
    places = {place.table for place in archive.ledger.batches.places({*oids})}
    folders = [
        folder_of(archive.spark, place) for place in sorted(places, key=str) if is_delta_table(archive.spark, place)
    ]
    return [archive.ledger.root, *(folder for folder in folders if not is_within(folder, archive.ledger.root))]


def _compared(archive: DeltaArchive, states: Sequence[TableState]) -> Iterator[ProvenTable]:
    """Compares targets with the rows that result from the archive."""
    own = {state.oid: state for state in states if state.is_complete}
    from_archive = {oid for oid, state in own.items() if state.snapshot is None}
    replayed = MomentReader(archive.spark, archive).replayed(from_archive)
    for oid, state in own.items():
        differences = None
        if oid in from_archive:
            columns = table_columns(state.relation, state.retired, archive.user_types)
            stored = tagged_target(archive.spark, state.path, columns)
            differences = _differences(state, columns, stored, replayed.get(oid))
        yield ProvenTable(state.full_name, differences)


def _differences(
    state: TableState, columns: Sequence[TableColumn], stored: DataFrame, replayed: DataFrame | None
) -> int:
    if replayed is None:  # no committed changes
        return stored.count()
    compared = [ComparedColumn(c.name, c.type) for c in columns if not c.retired]
    others = {f"m{n}": _as_text(name) for n, name in enumerate(_added(state))}
    names = (*text_names(len(compared)), *others)
    texts = [delta_texts(rows, compared, others).select(*names) for rows in (stored, replayed)]
    return texts[0].exceptAll(texts[1]).count() + texts[1].exceptAll(texts[0]).count()


def _added(state: TableState) -> list[str]:
    return [name for name in added_columns(state.mode) if name not in METADATA_COLUMNS]


def _as_text(name: str) -> Column:
    return F.to_json(F.struct(F.col(quoted(name)).alias("value")))

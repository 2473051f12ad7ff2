"""Data that an erasure can't reach."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.landing.known_files import is_unchanged
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.plain_file import root_of
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.work.erasure.landing import is_content_of
from pgoutput_etl.work.erasure.stored_files import SparkFiles

_SHOWN = 5  # files to list


def remains(archive: DeltaArchive, oids: Collection[int], rewritten: Collection[str] = ()) -> Iterator[str]:
    """Texts about what the job can't erase. oids: tables with erased rows. rewritten: paths of landed files."""
    for place in sorted((place for place in archive.ledger.batches.places(oids) if place.tag), key=str):
        yield (
            f"older versions of {place.table}, which several sources share: run VACUUM there while no source runs, "
            "and let Delta's log expire"
        )
    known, listing = archive.prior_state, archive.landing.listing()
    for reason in listing.not_plain.values():
        yield f"{reason}. What it leads to was neither searched nor changed"
    changed = {file.path for file in listing.files() if not is_unchanged(file, known)}
    unread = sorted(path for path in changed.difference(rewritten) if not _was_only_touched(archive, path))
    for path in unread[:_SHOWN]:
        yield f"{path}, which has not been applied as it is now, was not searched: run jobs/apply.py, and erase again"
    if len(unread) > _SHOWN:
        yield f"{len(unread) - _SHOWN:,} more files that have not been applied"
    for part in known.parts.values():
        if part.is_set_aside:
            yield f"{part.path}, which was refused, so its changes are not known: delete it"
    staged = f"{archive.ledger.root}/staged"
    for name in ObjectFolder(archive.spark, staged).names(""):
        yield f"{staged}/{name}, rows of a snapshot that died: delete the folder unless jobs/snapshot.py is running"
    for folder in sorted({root_of(archive.config.source.landing), archive.ledger.root}):
        if ObjectFolder(archive.spark, folder).keeps_versions():
            yield f"former versions of objects, which the storage of {folder} keeps, or may keep: delete them there"


def _was_only_touched(archive: DeltaArchive, path: str) -> bool:
    if (known := archive.prior_state.by_path.get(path)) is None:
        return False
    _, part = known
    try:
        return is_content_of(part, decompress(SparkFiles(archive).read(path, archive.config.source.landing), path))
    except ArchiveError:  # can no longer be decompressed
        return False

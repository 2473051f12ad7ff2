"""What the ledger keeps of an erasure, in its batch: who asked, and the files. It has no value, so a run that died can
be finished from it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from pgoutput_etl.jobs.forget.landing import FileErasure


@dataclass(frozen=True, slots=True)
class ErasureOrder:
    """by, reference: as in request.Erasure. oids: of the tables with erased rows. places: whose older versions are
    removed, because they ever had one of the tables."""

    by: str
    reference: str
    oids: tuple[int, ...]
    places: tuple[str, ...]
    files: tuple[FileErasure, ...]

    def to_json(self) -> str:
        return json.dumps({"erasure": asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> ErasureOrder:
        fields = json.loads(text)["erasure"]
        files = tuple(map(FileErasure.from_json, fields["files"]))
        return cls(fields["by"], fields["reference"], tuple(fields["oids"]), tuple(fields["places"]), files)


def same_files(files: Sequence[FileErasure], others: Sequence[FileErasure]) -> bool:
    """True if the same changes are erased from the same files."""
    return {(f.path, f.before, f.after) for f in files} == {(f.path, f.before, f.after) for f in others}

"""What the ledger keeps of an erasure, in its batch: who asked, which tables, and the files. It has no value."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from pgoutput_etl.work.erasure.landing import FileErasure
from pgoutput_etl.work.erasure.snapshot_files import CutFile


@dataclass(frozen=True, slots=True)
class ErasureOrder:
    """by, reference: as in request.Erasure. oids: of the tables with erased rows. places: whose older versions are
    removed, because they ever had one of the tables. snapshots: files that snapshots were loaded from."""

    by: str
    reference: str
    oids: tuple[int, ...]
    places: tuple[str, ...]
    files: tuple[FileErasure, ...]
    snapshots: tuple[CutFile, ...] = ()

    def to_json(self) -> str:
        return json.dumps({"erasure": asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> ErasureOrder:
        return TypeAdapter(dict[str, ErasureOrder]).validate_json(text)["erasure"]

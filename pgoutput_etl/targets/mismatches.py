"""Changes that contradict their table's rows: proof that the table differs from the server's."""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_etl.console import counted
from pgoutput_etl.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class Mismatches:
    """missing: number of UPDATEs and DELETEs of rows that the table didn't have. doubled: number of changes that gave a
    row the key of another row. commit_lsn, xid: of the transaction with the first such change."""

    missing: int
    doubled: int
    commit_lsn: int
    xid: int

    @property
    def total(self) -> int:
        return self.missing + self.doubled

    def __str__(self) -> str:
        missing = f"{counted(self.missing, 'UPDATE or DELETE', 'UPDATEs or DELETEs')} met no row"
        doubled = f"{counted(self.doubled, 'change')} gave a row the key of another row"
        counts = [text for count, text in ((self.missing, missing), (self.doubled, doubled)) if count]
        first = "it was" if self.total == 1 else "the first was"
        where = f"{first} in transaction {self.xid}, committed at LSN {format_lsn(self.commit_lsn)}"
        return f"{' and '.join(counts)}; {where}"


def added(first: Mismatches | None, second: Mismatches | None) -> Mismatches | None:
    """The sum of both."""
    if first is None or second is None:
        return first or second
    earlier = min(first, second, key=lambda mismatches: mismatches.commit_lsn)
    counts = (first.missing + second.missing, first.doubled + second.doubled)
    return Mismatches(*counts, earlier.commit_lsn, earlier.xid)

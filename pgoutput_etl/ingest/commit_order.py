"""Finds the file that breaks the order of commits, if the files around it prove which one it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan
from pgoutput_etl.transactions.outcome import Control, ControlRow

# Messages outside streams and two-phase commits
_ORDINARY = frozenset("BCIUDTRYOM")


def misplaced_file(scans: Mapping[int, FileScan], before: int, lsns: Mapping[int, int]) -> int | None:
    """The number of the only file of a batch whose removal puts its commits, and those before the batch, in order. A
    later file must agree with the files before this one; otherwise, this file might be the only correct one. None if
    the files don't prove which of them is wrong.

    before: the last commit LSN before the batch. lsns: for files that have such LSNs, the lowest LSN that neither
    follows the earlier ones nor was sent before.
    """
    last = {number: lsn for number, scan in sorted(scans.items()) if (lsn := scan.commits[1]) is not None}
    candidates = [number for number in last if _is_in_order_without(number, last, before, lsns)]
    if len(candidates) != 1 or candidates[0] == max(last):
        return None
    return candidates[0]


def _is_in_order_without(left_out: int, last: Mapping[int, int], before: int, lsns: Mapping[int, int]) -> bool:
    for number, lsn in last.items():
        if number != left_out:
            if lsns.get(number, before + 1) <= before:
                return False
            before = max(before, lsn)
    return True


def file_ahead(scans: Mapping[int, FileScan], before: int, number: int) -> int | None:
    """The number of the file with the highest commits before file `number`. None if an earlier batch has higher
    ones."""
    last = {n: lsn for n, scan in scans.items() if n < number and (lsn := scan.commits[1]) is not None}
    highest = max(last, key=last.__getitem__, default=None)
    return None if highest is None or last[highest] < before else highest


def relations_in(scan: FileScan, controls: Iterable[Control]) -> frozenset[int] | None:
    """The OIDs of relations with changes or descriptions in a file. None, meaning any, if the file is damaged or has
    parts of transactions that other files may continue."""
    has_head = scan.begins is not FileBeginning.EITHER or scan.head_needs_owner or scan.head_may_have_owner
    is_damaged = scan.damages or scan.interrupted or scan.orphans
    if has_head or scan.open_fragment is not None or is_damaged or not _ORDINARY.issuperset(scan.messages):
        return None
    messages = (decode(row.body, False) for row in controls if isinstance(row, ControlRow))
    return frozenset(scan.changes).union(m.oid for m in messages if isinstance(m, Relation))

"""Splits a backlog into batches.

A batch takes whole files in archive order as long as they don't commit more transactions than its limit; a file that
commits more becomes a separate batch. Files without commits go into the batch of the file before them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.landing.known_files import natural_order
from pgoutput_etl.landing.selection import FileSelection
from pgoutput_etl.scan.file_summary import FileScan

_COMMITS = ("C", "c", "K")  # Commit, Stream Commit, Commit Prepared


def commits_in(scan: FileScan) -> int:
    """The number of committed transactions that end in the file, including resent ones."""
    return sum(scan.messages.get(tag, 0) for tag in _COMMITS)


def in_steps(selection: FileSelection, commits: Mapping[str, int], limit: int | None) -> list[FileSelection]:
    """One selection per batch, in order. If there are several, each must be scanned again on its own.

    commits: number of commits by path, for each file to read. limit: the most commits in a batch; None for no limit.
    The first batch records the new names of contents, because some can only be recognized while they are the archive's
    end. The last one has all other records and the remarks, because these may be about copies of any of the files to
    read.
    """
    if limit is None or not _is_ordered_by_name(selection):
        return [selection]
    groups: list[dict[int, FilePart]] = [{}]
    total = 0
    for number, part in sorted(selection.in_order.items()):
        count = commits.get(part.path, 0)
        if total and count and total + count > limit:
            groups.append({})
            total = 0
        groups[-1][number] = part
        total += count
    if len(groups) == 1:
        return [selection]
    groups[0] |= selection.with_status(FileStatus.MOVED)
    groups[-1] |= selection.with_status(FileStatus.SAME, FileStatus.DUPLICATE, FileStatus.REFUSED)
    *first, last = groups
    return [*(FileSelection(parts, True) for parts in first), FileSelection(last, True, selection.remarks)]


def _is_ordered_by_name(selection: FileSelection) -> bool:
    """True if another run would read the remaining files in the same order after this run died with some of them
    applied. A file that took the name of a renamed file comes last, although its name may sort before others."""
    paths = [part.path for _, part in sorted(selection.to_read.items()) if part.was_read or part.unfinished]
    others = [part.path for part in selection.with_status(FileStatus.MOVED).values()]
    return not paths or paths[-1] == max([*others, *paths], key=natural_order)

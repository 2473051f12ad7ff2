"""A backlog in steps: which of the new files make the next batch, and which are left for those behind it.

A batch takes files, whole and in the order of the archive, as long as they commit no more transactions together than it
may; one that commits more by itself is a batch of its own. Those that commit nothing go along with the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

from pgoutput_etl.arranging import Arrangement, natural_order
from pgoutput_etl.identity import FilePart
from pgoutput_etl.message_rows import FileScan

_COMMITS = ("C", "c", "K")  # Commit, Stream Commit, Commit Prepared


def commits_in(scan: FileScan) -> int:
    """How many transactions end there by being committed, those that were sent before among them."""
    return sum(scan.messages.get(tag, 0) for tag in _COMMITS)


def in_steps(found: Arrangement, commits: Mapping[str, int], most: int | None) -> list[Arrangement]:
    """One arrangement per batch, in order; if there are several, all are to be scanned again, each by itself.

    `commits`: of each file to read, by path; `most`: in one batch, None for any number. What is only noted, and what is
    said of files, is left to the last batch: by then it doesn't matter any more in which run it comes.
    """
    to_read = found.to_read
    if most is None or not _names_tell_the_order(to_read):
        return [found]
    groups: list[dict[int, FilePart]] = [{}]
    taken = 0
    for number, part in sorted(to_read.items()):
        count = commits.get(part.path, 0)
        if taken and count and taken + count > most:
            groups.append({})
            taken = 0
        groups[-1][number] = part
        taken += count
    if len(groups) == 1:
        return [found]
    *first, last = groups
    noted = {number: part for number, part in found.parts.items() if number not in to_read}
    return [*(Arrangement(parts, True) for parts in first), Arrangement(last | noted, True, found.remarks)]


def _names_tell_the_order(parts: Mapping[int, FilePart]) -> bool:
    """Whether a run that finds some of them applied, as this one died, would read the others in the same order. A file
    that took the name of one that was renamed may have its place behind files that sort behind it."""
    paths = [part.path for _, part in sorted(parts.items()) if part.was_read or part.unfinished]
    return paths == sorted(paths, key=natural_order)

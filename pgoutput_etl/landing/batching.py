"""A backlog in steps: which of the new files make the next batch, and which are left for those behind it.

A batch takes files, whole and in the order of the archive, as long as they commit no more transactions together than it
may; one that commits more by itself is a batch of its own. Those that commit nothing go along with the one before.
"""

from __future__ import annotations

from collections.abc import Mapping

from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.landing.known_files import natural_order
from pgoutput_etl.landing.selection import FileSelection
from pgoutput_etl.scan.file_summary import FileScan

_COMMITS = ("C", "c", "K")  # Commit, Stream Commit, Commit Prepared


def commits_in(scan: FileScan) -> int:
    """How many transactions end there by being committed, those that were sent before among them."""
    return sum(scan.messages.get(tag, 0) for tag in _COMMITS)


def in_steps(found: FileSelection, commits: Mapping[str, int], most: int | None) -> list[FileSelection]:
    """One arrangement per batch, in order; if there are several, all are to be scanned again, each by itself.

    `commits`: of each file to read, by path; `most`: in one batch, None for any number. The first batch notes the new
    names of contents, as some are known again only while they are the archive's end. What else is only noted, and what
    is said of files, is left to the last one: a file may be the same as any of those to read.
    """
    to_read = found.to_read
    if most is None or not _names_tell_the_order(found):
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
    groups[0] |= found.with_status(FileStatus.MOVED)
    groups[-1] |= found.with_status(FileStatus.SAME, FileStatus.DUPLICATE, FileStatus.REFUSED)
    *first, last = groups
    return [*(FileSelection(parts, True) for parts in first), FileSelection(last, True, found.remarks)]


def _names_tell_the_order(found: FileSelection) -> bool:
    """Whether a run that finds some files applied, as this one died, would read the others in the same order. One that
    took the name of a file that was renamed comes last, and may sort before others."""
    paths = [part.path for _, part in sorted(found.to_read.items()) if part.was_read or part.unfinished]
    others = [part.path for part in found.with_status(FileStatus.MOVED).values()]
    return not paths or paths[-1] == max([*others, *paths], key=natural_order)

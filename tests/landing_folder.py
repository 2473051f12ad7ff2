"""A landing folder in memory, and the nightly job's reading of it without Spark: run after run, into a Replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pgoutput_etl.arranging import Arrangement, KnownFiles, arrange, candidates, refuse
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.identity import FilePart, LandedFile, Task
from pgoutput_etl.parts import scan_part
from pgoutput_etl.replay import Replay
from pgoutput_etl.steps import commits_in, in_steps
from pgoutput_etl.units import ScannedFile
from tests.small_archives import Rows, tables


@dataclass
class LandingFolder:
    """Files by name; `known` is what the ledger keeps of them."""

    files: dict[str, LandedFile] = field(default_factory=dict)
    content: dict[str, bytes] = field(default_factory=dict)
    known: dict[int, FilePart] = field(default_factory=dict)
    replay: Replay = field(init=False)
    salvages: bool = False
    clock: int = 0
    most: int | None = None  # transactions in one batch
    batches: int = 0
    dies: Callable[[], bool] = lambda: False  # asked between two batches of a run

    def __post_init__(self) -> None:
        self.replay = Replay(salvages=self.salvages)

    def put(self, name: str, content: bytes) -> None:
        self.clock += 1
        self.files[name] = LandedFile(name, len(content), self.clock)
        self.content[name] = content

    def append(self, name: str, more: bytes) -> None:
        self.put(name, self.content.get(name, b"") + more)

    def remove(self, name: str) -> bytes:
        del self.files[name]
        return self.content.pop(name)

    def rename(self, name: str, to: str) -> None:
        file = replace(self.files[name], path=to)
        self.content[to] = self.remove(name)
        self.files[to] = file

    def run(self) -> Arrangement:
        known = KnownFiles(dict(self.known))
        files = candidates(self.files.values(), known)
        scanned, errors = self._scan({file.path: Task(n, file.size) for n, file in files.items()}, known)
        scans = {n: each.summary for n, each in scanned.items()}
        found = arrange(files, scans, errors, known, self.files)
        newest = max((n for n, part in found.to_read.items() if part.was_read or part.unfinished), default=None)
        commits = {files[n].path: commits_in(scan) for n, scan in scans.items()}
        for i, step in enumerate(in_steps(found, commits, self.most)):
            if i and self.dies():
                break
            self._apply(step, newest, scanned, known)
        return found

    def _apply(self, step: Arrangement, newest: int | None, scanned: dict[int, ScannedFile], known: KnownFiles) -> None:
        parts = step.parts
        if step.scan_again:
            tasks = {part.path: Task(n, part.size, n == newest, part) for n, part in step.to_read.items()}
            scanned, errors = self._scan(tasks, known)
            refuse(errors.values())
            for n, each in scanned.items():
                s = each.summary
                parts[n] = replace(parts[n], consumed=s.consumed, prefix_hash=s.prefix_hash, unfinished=bool(s.tail))
        for number in sorted(step.to_read):
            self.replay.add_scanned(parts[number].path, scanned[number])
        self.known |= parts
        self.batches += bool(parts)

    def _scan(self, tasks: dict[str, Task], known: KnownFiles) -> tuple[dict[int, ScannedFile], dict[int, str]]:
        scanned, errors = {}, {}
        for path, task in tasks.items():
            try:
                scanned[task.number] = scan_part(path, self.content[path], task, known.contents, salvages=self.salvages)
            except ArchiveError as error:
                errors[task.number] = str(error)
        return scanned, errors

    def tables(self) -> dict[str, Rows]:
        return tables(self.replay)

    def rows(self) -> Rows:
        return self.tables().get("t", [])

"""Lists and inspects local files without Spark, in one or several processes."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.parse import unquote

from pgoutput_etl import plain_file
from pgoutput_etl.compression import MAX_SIZE
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.inspection.file_scan import FileInspection, inspect_file
from pgoutput_etl.inspection.message_lines import InspectionContext, print_messages, vanished_file_line
from pgoutput_etl.landing.file_index import Listing
from pgoutput_etl.landing.fingerprint import ScanTask
from pgoutput_etl.landing.local_files import LocalFiles
from pgoutput_etl.plain_file import root_of
from pgoutput_etl.protocol.framing import Framing

_MIN_BYTES_FOR_PROCESSES = 1 << 23  # starting processes takes about as long as inspecting this many bytes

_A = TypeVar("_A")

_B = TypeVar("_B")


def is_local(path: str) -> bool:
    """True for paths on this machine's file system, which don't need Spark."""
    return path.startswith("file:/") or re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is None


def list_local(paths: Iterable[str]) -> Listing:
    """The named files, all files below named folders, and all matches of globs. As in Spark, names with a leading dot
    or underscore are skipped unless they are named themselves. Raises ConfigError for a path without a match, and
    ArchiveError for a folder that can't be read."""
    files = LocalFiles()
    for path in paths:
        local = unquote("/" + path[5:].lstrip("/")) if path.startswith("file:") else path
        if os.path.lexists(local):
            files.add_named(str(Path(local)))
            continue
        matches = {str(Path(match)) for pattern in expand_braces(local) for match in glob(pattern, recursive=True)}  # noqa: PTH207
        if not matches:
            raise ConfigError(f"{path} does not exist")
        files.add_matched(sorted(matches), root_of(local))
    return files.listing()


def expand_braces(pattern: str) -> list[str]:
    """Expands {a,b}, which Hadoop's globs support."""
    before, brace, rest = pattern.partition("{")
    inside, end, after = rest.partition("}")
    if not brace or not end:
        return [pattern]
    return [expanded for choice in inside.split(",") for expanded in expand_braces(before + choice + after)]


def read_local(path: str) -> bytes:
    """Raises ArchiveError for a file that can't be read, or that has more bytes than a scan can read."""
    try:
        return plain_file.read(path, most=MAX_SIZE)
    except OSError as error:
        raise ArchiveError(f"{path}: can't be read: {error.strerror}") from None


@dataclass(slots=True)
class LocalRunner:
    """See archive.Runner. folder: for intermediate files. processes: the maximum; 1 runs everything in this process.
    read: returns a file's stored bytes; only called by `scan`."""

    folder: Path
    framing: Framing = Framing.AUTO
    processes: int = 1
    read: Callable[[str], bytes] = read_local
    _pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> LocalRunner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def scan(self, tasks: Mapping[str, ScanTask]) -> dict[int, FileInspection]:
        size = sum(task.size for task in tasks.values())
        if self._pool is None and min(self.processes, len(tasks)) > 1 and size >= _MIN_BYTES_FOR_PROCESSES:
            # Arrow's threads don't survive a fork.
            self._pool = ProcessPoolExecutor(min(self.processes, len(tasks)), get_context("spawn"))
        inspections = self._map(partial(_scan, self.folder, self.framing, self.read), tasks.items())
        return {inspection.number: inspection for inspection in inspections}

    def query(self, query: Callable[[bytes], _B]) -> dict[int, _B]:
        heads = sorted(self.folder.glob("*.heads"), key=lambda path: int(path.stem))
        results = self._map(partial(_query, query), heads)
        return {int(path.stem): result for path, result in zip(heads, results, strict=True)}

    def print_messages(self, contexts: Sequence[InspectionContext], emit: Callable[[str], object]) -> None:
        if self._pool is None:
            for context in contexts:
                _print_messages(context, emit)
            return
        printed: deque[Future[Path]] = deque()
        waiting = iter(enumerate(contexts))
        while True:
            for number, context in islice(waiting, 2 * self.processes - len(printed)):  # limits intermediate files
                printed.append(self._pool.submit(_print_to, self.folder / f"{number}.lines", context))
            if not printed:
                return
            path = printed.popleft().result()
            with path.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    emit(line.removesuffix("\n"))
            path.unlink()

    def _map(self, function: Callable[[_A], _B], items: Iterable[_A]) -> Iterator[_B]:
        if self._pool is None:
            return map(function, items)
        listed = list(items)
        return self._pool.map(function, listed, chunksize=max(1, len(listed) // (8 * self.processes)))


def _scan(folder: Path, framing: Framing, read: Callable[[str], bytes], item: tuple[str, ScanTask]) -> FileInspection:
    path, task = item
    try:
        inspection, heads = inspect_file(path, read(path), task, framing)
    except ArchiveError as error:
        inspection, heads = FileInspection(task.number, error=str(error)), b""
    (folder / f"{task.number}.heads").write_bytes(heads)
    return inspection


def _query(query: Callable[[bytes], _B], heads: Path) -> _B:
    return query(heads.read_bytes())


def _print_messages(context: InspectionContext, emit: Callable[[str], object]) -> None:
    try:
        content = read_local(context.path)
    except ArchiveError:
        emit(vanished_file_line(context))
    else:
        print_messages(context, content, emit)


def _print_to(path: Path, context: InspectionContext) -> Path:
    with path.open("w", encoding="utf-8", newline="\n") as lines:
        _print_messages(context, lambda line: lines.write(f"{line}\n"))
    return path


@contextmanager
def local_runner(
    framing: Framing = Framing.AUTO, read: Callable[[str], bytes] = read_local, processes: int | None = None
) -> Iterator[LocalRunner]:
    """A runner with a separate folder. Valid within the context. processes: by default, one per processor."""
    with (
        TemporaryDirectory(prefix="pgoutput-etl.") as folder,
        LocalRunner(Path(folder), framing, processes or os.cpu_count() or 1, read) as runner,
    ):
        yield runner

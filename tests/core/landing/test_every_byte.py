"""After each run every byte is applied, accounted for, or the end of the newest file that may become a message.

Random nights: receivers that pause and die at any byte, bytes that no server sends, files that are renamed, compressed
and copied, in every framing. Faults found by this search have small tests in test_selection.py.
"""

from __future__ import annotations

import gzip
import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from pgoutput_etl.errors import ArchiveError, PgoutputEtlError
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.file_summary import FileScan
from tests.core.landing.test_selection import FRAMINGS
from tests.support import encoder
from tests.support.landing_folder import LandingFolder
from tests.support.small_archives import Messages, in_subtransaction, insert, segment, stream_commit, table, transaction

NEVER_SENT = b"\xff\xfe"  # no message, no length and no frame begins with it
COPY_HEADER = encoder.pgcopy([])[:-2]
KEEPALIVE = encoder.copydata([], keepalives=[0])


def unit(number: int) -> Messages:
    """The unit that a server sends: an ordinary transaction, or a streamed one."""
    described = [table()] if number % 7 == 1 else []
    if number % 5 == 4:
        begun = segment(number, *described, insert(str(number), "s" * number), first=True)
        more = segment(number, in_subtransaction(number + 1000, insert(str(-number), "sub")))
        return [*begun, *more, *stream_commit(number, number * 100)]
    return transaction(number, number * 100, *described, insert(str(number), "v" * (number % 3 * 40)))


def frames_of(messages: Messages, framing: str, keepalives: bool = False) -> list[bytes]:
    """Without COPY's header and trailer."""
    rows = [encoder.Row(0x1000000 + i, 0, encoder.encode(message)) for i, message in enumerate(messages)]
    if framing == "pgcopy":
        return [encoder.pgcopy([row])[len(COPY_HEADER) : -2] for row in rows]
    if framing == "copydata":
        return [KEEPALIVE * keepalives + encoder.copydata([row]) for row in rows]
    return [FRAMINGS[framing]([row]) for row in rows]


@dataclass
class Written:
    """A file as written. owed: the rest of a message whose first part is written. torn: that rest may never come. junk:
    the file ends with bytes that no message can begin with."""

    name: str
    framing: str
    data: bytes = b""
    owed: bytes = b""
    torn: bool = False
    junk: bool = False

    def add(self, data: bytes) -> None:
        if data:
            header = COPY_HEADER if not self.data and self.framing == "pgcopy" else b""
            self.data += header + data
            self.torn = self.junk = False


@dataclass
class Story:
    """Nights of one receiver, and of a person who changes the landing folder."""

    seed: int
    framing: Framing
    salvages: bool
    chance: random.Random = field(init=False)
    folder: LandingFolder = field(init=False)
    files: list[Written] = field(default_factory=list)
    next_unit: int = 1
    names: int = 0
    unfinished: Written | None = None  # compressed, and not whole yet

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed} {self.framing.value} {self.salvages}")
        most = self.chance.choice((None, None, 1, 2))
        self.folder = LandingFolder(salvages=self.salvages, framing=self.framing, most=most)

    def new_name(self) -> str:
        self.names += 1
        return f"{self.names:03}.bin"

    def begin_file(self) -> Written:
        allowed = [framing for framing in FRAMINGS if self.framing.value in (framing, "auto")]
        self.files.append(Written(self.new_name(), self.chance.choice(allowed)))
        return self.files[-1]

    @property
    def newest(self) -> Written:
        return self.files[-1] if self.files else self.begin_file()

    def put(self, file: Written) -> None:
        self.folder.put(file.name, file.data)

    def next_frames(self, file: Written) -> list[bytes]:
        self.next_unit += 1
        return frames_of(unit(self.next_unit - 1), file.framing, self.chance.random() < 0.2)

    def goes_on(self) -> None:
        """Writes whole units, then one up to any byte, where the receiver pauses or dies."""
        file = self.newest
        file.add(file.owed)
        file.owed = b""
        for _ in range(self.chance.randrange(3)):
            file.add(b"".join(self.next_frames(file)))
        if self.chance.random() < 0.7:
            frames = self.next_frames(file)
            whole = frames[: self.chance.randrange(len(frames) + 1)]
            rest = b"".join(frames[len(whole) :])
            cut = self.chance.randrange(len(rest) + 1)
            file.add(b"".join(whole) + rest[:cut])
            file.torn, file.owed = file.torn or 0 < cut < len(rest), rest[cut:]
            if self.chance.random() < 0.5:
                self.dies(file)
        self.put(file)

    def dies(self, file: Written) -> None:
        """The server sends from the unit that was cut off, or from an earlier one, to the same file or to a new one."""
        file.owed = b""
        self.next_unit = max(1, self.next_unit - self.chance.choice((1, 1, 2, 3)))
        if self.chance.random() < 0.5:
            self.begin_file()

    def junk(self) -> None:
        """After the first part of a message, the bytes may be its rest."""
        if self.chance.random() < 0.5 or self.framing is Framing.AUTO:
            self.goes_on()
        file = self.newest
        if file.data or self.framing is not Framing.AUTO:
            file.junk = not file.torn
            file.data += NEVER_SENT + self.chance.randbytes(self.chance.randrange(200))
            self.put(file)
            if file.owed:
                self.dies(file)

    def rotated(self) -> None:
        """Completes the file, may rename it and compress it in part or in full, and begins another one."""
        file = self.newest
        file.add(file.owed)
        file.owed = b""
        if not file.data:
            return
        self.put(file)
        if self.chance.random() < 0.6:
            self.folder.remove(file.name)
            file.name = self.new_name() + self.chance.choice(("", ".gz"))
            content = gzip.compress(file.data) if file.name.endswith(".gz") else file.data
            if file.name.endswith(".gz") and self.chance.random() < 0.3:
                self.unfinished, content = file, content[: self.chance.randrange(len(content))]
            self.folder.put(file.name, content)
        self.begin_file()

    def copied(self) -> None:
        file = self.newest
        if file.data and not file.owed:
            self.put(file)
            self.files.append(replace(file, name=self.new_name()))
            self.put(self.newest)
            self.begin_file()

    def night(self) -> None:
        ways = [self.goes_on] * 6 + [self.rotated, self.copied] + [self.junk] * (1 + self.salvages)
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            self.chance.choice(ways)()

    def run(self) -> None:
        before = set(self.folder.known)
        try:
            self.folder.run()
        except ArchiveError as error:
            if self.unfinished is None or "Truncated compressed stream" not in str(error):
                raise
            self.folder.put(self.unfinished.name, gzip.compress(self.unfinished.data))
            self.folder.run()
        if self.unfinished is not None:
            self.folder.put(self.unfinished.name, gzip.compress(self.unfinished.data))
            self.unfinished = None
            self.folder.run()
        self.check(set(self.folder.known) - before)

    def check(self, new: set[int]) -> None:
        known = self.folder.known
        for number in new:
            if known[number].status == FileStatus.READ.value:
                self.check_part(number, known[number])
        last = max((n for n, part in known.items() if part.was_read or part.has_tail), default=-1)
        by_path = {part.path: (number, part) for number, part in sorted(known.items())}
        for file in self.files:
            if file.name in self.folder.files:
                self.check_file(file, *by_path[file.name], last)

    def check_part(self, number: int, part: FilePart) -> None:
        accounted = sum(self.folder.accounts.get(number, {}).values())
        assert accounted == part.consumed - part.offset, f"{part}: {self.folder.accounts.get(number)}"
        if part.was_read:
            assert found_in(self.folder.scanned_again(number)) == found_in(self.folder.scans[number]), part

    def check_file(self, file: Written, number: int, part: FilePart, last: int) -> None:
        rest = file.data[part.consumed :]
        if part.status == FileStatus.REFUSED.value or not rest or has_no_message(file.data):
            return
        if part.status == FileStatus.DUPLICATE.value:
            assert any(other.data.startswith(file.data) for other in self.files if other is not file), part
            return
        assert last in (number, part.same_as), f"{file.name} is not the newest: {part}"
        assert not file.junk, f"{file.name}: bytes that can be no message are left: {part}"
        assert any(file.name in line for line in self.folder.remarks), f"{file.name}: nothing is said of its end"

    def ends(self) -> None:
        """Lands a last, complete file, so that nothing is left for a later run."""
        self.newest.owed = b""
        self.put(self.newest)
        before, final = list(self.files), self.begin_file()
        units = range(1, self.next_unit + 20)  # more than any file has
        final.add(b"".join(frame for n in units for frame in frames_of(unit(n), final.framing)))
        if final.framing == "pgcopy":
            final.data += b"\xff\xff"
        self.put(final)
        self.run()
        by_path = {part.path: part for _, part in sorted(self.folder.known.items())}
        left = [by_path[file.name] for file in before if file.name in self.folder.files]
        assert [part for part in left if part.has_tail and part.consumed < (part.decompressed_size or 0)] == []
        assert self.folder.run().parts == {}
        assert self.folder.remarks == []


def found_in(scan: FileScan) -> tuple[object, ...]:
    """Everything that matters; reasons for unreadable bytes may contain the file's size."""
    damages = [replace(damage, reason="") for damage in scan.damages]
    return scan.consumed, scan.prefix_hash, scan.messages, scan.changes, damages, scan.open_fragment


def has_no_message(data: bytes) -> bool:
    return data in (COPY_HEADER, COPY_HEADER + b"\xff\xff") or not data.replace(KEEPALIVE, b"")


def told(seed: int, framing: str, salvages: bool) -> str:
    """The outcome: "whole", or the error of a run that stopped."""
    story = Story(seed, Framing(framing), salvages)
    try:
        for _ in range(story.chance.randrange(2, 9)):
            story.night()
            story.run()
        story.ends()
    except PgoutputEtlError as error:
        return str(error)
    return "whole"


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 1000), marks=pytest.mark.soak)], ids=str)
@pytest.mark.parametrize("salvages", [True, False], ids=["quarantine", "fail"])
@pytest.mark.parametrize(
    "framing",
    [*(pytest.param(framing, marks=pytest.mark.soak) for framing in FRAMINGS), "auto"],  # "auto" has files of all
)
def test_random_nights(framing: str, salvages: bool, seeds: range) -> None:
    ends: Counter[str] = Counter()
    for seed in seeds:
        try:
            ends[told(seed, framing, salvages)] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert ends["whole"] > (len(seeds) * 0.8 if salvages else 0), ends
    assert not any("sorts before" in end or "has grown" in end for end in ends)

"""Files that are numbered one after the other, and a number that is not there: whole transactions may be missing.

A file that is missing within a transaction is noticed by its messages. One that held whole transactions leaves no
trace in the others, but in their names. Names count as numbered if two in a row differ by one in a single number;
dates and times of day do not, as they go on in steps of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from itertools import pairwise

_NUMBER = re.compile(r"\d+")

_MOST_DIGITS = 7

_STEPS_OF_EVIDENCE = 2


def missing_number(paths: Sequence[str], checked_from: int = 0) -> str | None:
    """Of paths in the order of the archive: what is missing before which of paths[checked_from:]; None: nothing."""
    return next((said for at, said in missing_numbers(paths) if at >= checked_from), None)


def missing_numbers(paths: Sequence[str]) -> Iterator[tuple[int, str]]:
    """All that are missing, each with the index of the path behind it."""
    steps = 0
    for number, (before, after) in enumerate(pairwise(paths), start=1):
        step = _step(before, after)
        if step is not None and step > 1 and steps >= _STEPS_OF_EVIDENCE:
            yield number, f"between {before} and {after} {_counted(step - 1)} missing"
        steps = steps + 1 if step == 1 else 0


def is_consecutive(paths: Sequence[str]) -> bool:
    """Whether names prove that no file is missing between them: each one's number follows the one before."""
    return len(paths) > 1 and all(_step(before, after) == 1 for before, after in pairwise(paths))


def _counted(files: int) -> str:
    return "a file is" if files == 1 else f"{files:,} files are"


def _step(before: str, after: str) -> int | None:
    """By how much the one number differs in which two names do; None if they differ otherwise."""
    numbers = list(zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=False))
    differing = [(old, new) for old, new in numbers if old != new]
    if len(differing) != 1 or _NUMBER.sub("#", before) != _NUMBER.sub("#", after):
        return None
    old, new = differing[0]
    if max(len(old), len(new)) > _MOST_DIGITS or (_is_a_date(old) and _is_a_date(new)):
        return None
    return int(new) - int(old)


def _is_a_date(digits: str) -> bool:
    """Such as 261121, a day, or 235959, a time."""
    if len(digits) != 6:
        return False
    for form in ("%y%m%d", "%H%M%S"):
        try:
            datetime.strptime(digits, form).replace(tzinfo=timezone.utc)
        except ValueError:
            continue
        return True
    return False

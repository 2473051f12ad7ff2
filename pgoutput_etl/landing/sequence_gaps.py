"""Finds missing numbers in the names of consecutive files, where whole transactions may be missing.

A file that is missing within a transaction can be noticed from the messages of the others. A missing file with only
whole transactions leaves a trace only in the names. Names count as numbered if two consecutive ones differ by one in a
single number. Dates and times of day don't count, because their steps vary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import lru_cache
from itertools import pairwise

_NUMBER = re.compile(r"\d+")

_MOST_DIGITS = 7

_STEPS_OF_EVIDENCE = 2


def missing_number(paths: Sequence[str], checked_from: int = 0) -> str | None:
    """Describes the first gap before any of paths[checked_from:], or None. paths: in archive order."""
    return next((text for at, text in missing_numbers(paths) if at >= checked_from), None)


def missing_numbers(paths: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Describes all gaps, each with the index of the path that follows it."""
    steps = 0
    for number, (before, after) in enumerate(pairwise(paths), start=1):
        step = _step(before, after)
        if step is not None and step > 1 and steps >= _STEPS_OF_EVIDENCE:
            files = "a file is" if step == 2 else f"{step - 1:,} files are"
            yield number, f"between {before} and {after} {files} missing"
        steps = steps + 1 if step == 1 else 0


def is_consecutive(paths: Sequence[str]) -> bool:
    """True if the names prove that no file is missing between them: each number follows the previous one."""
    return len(paths) > 1 and all(_step(before, after) == 1 for before, after in pairwise(paths))


def _step(before: str, after: str) -> int | None:
    """The difference between two names that differ in a single number; None for other names."""
    numbers = list(zip(_NUMBER.findall(before), _NUMBER.findall(after), strict=False))
    differing = [(old, new) for old, new in numbers if old != new]
    if len(differing) != 1 or _NUMBER.sub("#", before) != _NUMBER.sub("#", after):
        return None
    old, new = differing[0]
    if max(len(old), len(new)) > _MOST_DIGITS or (_is_date_or_time(old) and _is_date_or_time(new)):
        return None
    return int(new) - int(old)


@lru_cache(2)  # a name is compared with the one before it and the one after it
def _is_date_or_time(digits: str) -> bool:
    """True for a date such as 261121, or a time of day such as 235959."""
    if len(digits) != 6:
        return False
    for form in ("%y%m%d", "%H%M%S"):
        with suppress(ValueError):
            datetime.strptime(digits, form).replace(tzinfo=timezone.utc)
            return True
    return False

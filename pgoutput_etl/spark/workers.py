"""Python workers of Spark, in which the functions of mapInArrow run."""

from __future__ import annotations

import gc
import sys

_frozen = 0  # modules


def freeze_modules() -> None:
    """Exempts all objects of the modules that are loaded by now from garbage collection. Spark's workers collect after
    every task, which takes 40 ms with pandas, pyarrow, and numba loaded. To be called as a task begins."""
    global _frozen  # noqa: PLW0603 - of this process
    if len(sys.modules) != _frozen:
        gc.freeze()
        _frozen = len(sys.modules)

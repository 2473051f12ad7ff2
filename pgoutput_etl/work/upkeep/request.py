"""The options of the maintenance job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import NUMBER, PATTERNS, Option, Value, words

STEPS = ("retention", "displaced", "optimize", "vacuum", "checkpoint")

MIN_KEEP_DAYS = 7  # Delta's own limit, which remains in force


@dataclass(frozen=True, slots=True)
class MaintainRequest:
    """ledger_keep_days: displaced tables are also kept for at least keep_days."""

    tables: Annotated[tuple[str, ...], Option("targets to maintain", PATTERNS)] = ("*",)
    only: Annotated[tuple[str, ...], Option(f"some of {', '.join(STEPS)} (default: all)", Value("STEP,…", words))] = (
        STEPS
    )
    zorder: Annotated[bool, Option("order targets' rows by their key; rewrites them")] = False
    keep_days: Annotated[
        int, Option("VACUUM keeps files needed by versions of the last N days, the minimum or more", NUMBER)
    ] = MIN_KEEP_DAYS
    ledger_keep_days: Annotated[int, Option("keep obsolete ledger rows and displaced tables for N days", NUMBER)] = 30
    execute: Annotated[
        bool,
        Option("run the steps"),
        Option("only list them, as without --execute", name="--dry-run", means=False),
    ] = False

    def check(self) -> None:
        """Raises ConfigError for invalid values."""
        if self.keep_days < MIN_KEEP_DAYS:
            raise ConfigError(
                f"--keep-days: expected {MIN_KEEP_DAYS} or more: runs and readers of earlier versions may need younger "
                "files"
            )
        if self.ledger_keep_days < 1:
            raise ConfigError("--ledger-keep-days: expected 1 or more")
        unknown = [step for step in self.only if step not in STEPS]
        if unknown or not self.only:
            raise ConfigError(f"--only: expected some of {', '.join(STEPS)}")

"""The options of the maintenance job."""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_etl.errors import ConfigError

STEPS = ("retention", "displaced", "optimize", "vacuum", "checkpoint")

MIN_KEEP_DAYS = 7  # Delta's own limit, which stays in force


@dataclass(frozen=True, slots=True)
class MaintainRequest:
    """only: some of STEPS. keep_days: age at which VACUUM removes unused files. ledger_keep_days: age at which obsolete
    ledger rows are deleted, and displaced tables removed, but not before keep_days."""

    tables: tuple[str, ...] = ("*",)
    only: tuple[str, ...] = STEPS
    zorder: bool = False
    keep_days: int = MIN_KEEP_DAYS
    ledger_keep_days: int = 30
    execute: bool = False

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

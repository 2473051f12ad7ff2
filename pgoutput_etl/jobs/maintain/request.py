"""What maintain is asked to do: steps, tables and days to keep."""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_etl.errors import ConfigError

STEPS = ("retention", "optimize", "vacuum", "checkpoint")

LEAST_KEEP_DAYS = 7  # Delta's own limit, which is not switched off


@dataclass(frozen=True, slots=True)
class MaintainRequest:
    """only: some of STEPS. keep_days: of files that no version needs; ledger_keep_days: of the ledger's rows."""

    tables: tuple[str, ...] = ("*",)
    only: tuple[str, ...] = STEPS
    zorder: bool = False
    keep_days: int = LEAST_KEEP_DAYS
    ledger_keep_days: int = 30
    execute: bool = False

    def check(self) -> None:
        """Raises ConfigError."""
        if self.keep_days < LEAST_KEEP_DAYS:
            raise ConfigError(
                f"--keep-days: expected {LEAST_KEEP_DAYS} or more: a run, or somebody who reads an earlier version, "
                "may need younger files"
            )
        if self.ledger_keep_days < 1:
            raise ConfigError("--ledger-keep-days: expected 1 or more")
        unknown = [step for step in self.only if step not in STEPS]
        if unknown or not self.only:
            raise ConfigError(f"--only: expected some of {', '.join(STEPS)}")

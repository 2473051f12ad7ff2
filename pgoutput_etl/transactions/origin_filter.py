"""Filters transactions by the replication origin that they name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Origins:
    """accepted: the only origins to apply; None for all. skipped: origins not to apply. A transaction without an origin
    is local and always applied."""

    accepted: frozenset[str] | None = None
    skipped: frozenset[str] = frozenset()

    @property
    def refuse_any(self) -> bool:
        return self.accepted is not None or bool(self.skipped)

    def accepts(self, name: str | None) -> bool:
        if name is None:
            return True
        return name not in self.skipped and (self.accepted is None or name in self.accepted)

    def refused(self, names: pa.Array) -> pa.Array:
        """One boolean per name: true if transactions of that origin are left out; false for NULL."""
        import pyarrow as pa  # takes longer to import than the configuration takes to check
        import pyarrow.compute as pc

        refused = [name for name in pc.unique(names).to_pylist() if not self.accepts(name)]
        return pc.is_in(names, pa.array(refused, pa.string()))


ANY = Origins()

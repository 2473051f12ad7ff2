"""How a table reacts to column changes: the `on_schema_change` setting of its rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from pgoutput_etl.errors import RunError, TableError
from pgoutput_etl.reasons import ReasonKind
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.diff import ChangeKind, SchemaChange


class OnAmbiguous(Enum):
    """The reaction to a change that has two readings, if the archive doesn't show which one is right.

    REPORT takes the likelier reading, and reports the table until somebody has declared the right one. HOLD leaves the
    table unchanged until then. IGNORE considers the likelier reading right.
    """

    REPORT = "report"
    HOLD = "hold"
    IGNORE = "ignore"


class OnChange(Enum):
    """A reaction to a change of columns.

    FOLLOW applies the change. HOLD leaves the table unchanged until somebody accepts the change. FAIL stops the run
    before it writes. KEEP is for dropped columns, and leaves the column in the target.
    """

    FOLLOW = "follow"
    HOLD = "hold"
    FAIL = "fail"
    KEEP = "keep"


_PARTS = {
    ChangeKind.ADDED: "add",
    ChangeKind.PUBLISHED: "add",
    ChangeKind.DROPPED: "drop",
    ChangeKind.RETIRED: "drop",
    ChangeKind.RENAMED: "rename",
    ChangeKind.RETYPED: "retype",
    ChangeKind.KEY: "key",
}


@dataclass(frozen=True, slots=True)
class SchemaContract:
    add: OnChange = OnChange.FOLLOW
    drop: OnChange = OnChange.FOLLOW
    rename: OnChange = OnChange.FOLLOW
    retype: OnChange = OnChange.FOLLOW
    key: OnChange = OnChange.FOLLOW
    ambiguous: OnAmbiguous = OnAmbiguous.REPORT

    @classmethod
    def of(cls, values: dict[str, str]) -> SchemaContract:
        kinds: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)}
        return cls(**{part: kinds[part](value) for part, value in values.items()})

    def values(self) -> dict[str, str]:
        return {field.name: getattr(self, field.name).value for field in fields(self)}

    @property
    def follows_all(self) -> bool:
        """True if every change is applied without asking."""
        is_followed = replace(self, ambiguous=FOLLOW_ALL.ambiguous) == FOLLOW_ALL
        return is_followed and self.ambiguous is not OnAmbiguous.HOLD

    @property
    def keeps_dropped(self) -> bool:
        return self.drop is OnChange.KEEP

    def check(self, table: str, changes: Iterable[SchemaChange], doubts: Iterable[Doubt]) -> None:
        """table: full name. doubts: about the changes. Raises TableError if the table must be held, and RunError if the
        run must stop."""
        changes = [change for change in changes if change.kind in _PARTS]
        refused = [str(change) for change in changes if self._action(change) is OnChange.FAIL]
        if refused:
            raise RunError(
                f"the columns of {table} changed, and its on_schema_change asks to stop: {'; '.join(refused)}. Nothing "
                "was written. Set it to follow to go on, or to hold to leave only this table as it is"
            )
        held = [str(change) for change in changes if self._action(change) is OnChange.HOLD]
        if self.ambiguous is OnAmbiguous.HOLD:
            held += [str(doubt) for doubt in doubts]
        if held:
            is_new_type = any(c.kind is ChangeKind.RETYPED and self._action(c) is OnChange.HOLD for c in changes)
            kind = ReasonKind.NEW_TYPE if is_new_type else ReasonKind.CONTRACT
            raise TableError(f"its columns changed, which on_schema_change holds: {'; '.join(held)}", kind)

    def _action(self, change: SchemaChange) -> OnChange:
        action: OnChange = getattr(self, _PARTS[change.kind])
        return action


FOLLOW_ALL = SchemaContract()

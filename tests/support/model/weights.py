"""The weights of a random session's actions."""

from __future__ import annotations

import random
from bisect import bisect
from collections.abc import Mapping
from itertools import accumulate
from types import MappingProxyType

# Weights of actions inside a transaction, and outside.
IN_TRANSACTION: Mapping[str, int] = MappingProxyType(
    {
        "insert": 30,
        "update": 18,
        "delete": 8,
        "truncate": 2,
        "lock_row": 1,
        "message": 2,
        "savepoint": 4,
        "release": 2,
        "roll_back_to": 4,
        "commit": 7,
        "roll_back": 2,
        "prepare": 2,
        "add_column": 2,
        "add_default": 1,
        "drop_column": 1,
        "rename_column": 1,
        "retype_column": 1,
        "set_identity": 2,
        "set_key": 1,
        "rename_table": 2,
        "swap_tables": 1,
        "create_table": 1,
        "drop_table": 1,
        "replace_table": 1,
        "publish_table": 1,
        "list_columns": 1,
        "unpublish_table": 1,
        "set_operations": 1,
    }
)
OUTSIDE: Mapping[str, int] = MappingProxyType(
    {"begin": 100, "prepare_empty": 3, "commit_prepared": 50, "roll_back_prepared": 12, "message": 3, "crash": 1}
)
_ROWS_AND_TRANSACTIONS = (
    *("insert", "update", "delete", "truncate", "lock_row", "message", "savepoint", "release", "roll_back_to"),
    *("commit", "roll_back", "prepare"),
)
# Without actions after which an archive can't know all rows of a table.
PUBLISHED: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("add_default", "list_columns", "unpublish_table", "set_operations"), 0)
)
WITHOUT_DDL: Mapping[str, int] = MappingProxyType(
    {kind: 0 for kind in IN_TRANSACTION if kind not in _ROWS_AND_TRANSACTIONS}
)


class Weights:
    """Draws a kind with the probability that its weight has."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.kinds = [kind for kind, weight in weights.items() if weight]
        self.totals = list(accumulate(weights[kind] for kind in self.kinds))

    def draw(self, chance: random.Random) -> str:
        return self.kinds[bisect(self.totals, chance.random() * self.totals[-1])]

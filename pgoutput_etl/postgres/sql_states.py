"""Classifies PostgreSQL's error codes (SQLSTATE). Source: appendix "PostgreSQL Error Codes"."""

from __future__ import annotations

import re

# Classes of errors about connections, privileges, names, and resources. Others may quote values, or texts chosen by a
# function of a table's owner.
_NO_VALUES = re.compile(r"08|0A|25|28|3D|3F|42|53|54|55|57|58")

# Errors specific to a table: of values, names, privileges, locks, time limits, and damaged pages.
_OF_ONE_TABLE = re.compile(r"22|42|55P03|57014|XX00[12]")


def has_no_values(state: str) -> bool:
    return _NO_VALUES.match(state) is not None


def is_of_one_table(state: str) -> bool:
    return _OF_ONE_TABLE.match(state) is not None

"""The data source for sessions in which Spark pushes filters down (4.1 and newer)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from pgoutput_etl.datasource.options import COMMIT_LSN
from pgoutput_etl.datasource.source import ArchiveReader, ArchiveSource

_FROM, _TO = (EqualTo, GreaterThan, GreaterThanOrEqual), (EqualTo, LessThan, LessThanOrEqual)


class PushdownReader(ArchiveReader):
    """Leaves out files that have no commit in a filter's range. Spark applies all filters, too."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        narrowing = self.plan.narrowing
        for item in filters:
            if getattr(item, "attribute", None) == (COMMIT_LSN,) and isinstance(item, _FROM + _TO):
                first, last = (item.value if isinstance(item, kinds) else None for kinds in (_FROM, _TO))
                narrowing = narrowing.within(first, last)
        self.plan = replace(self.plan, narrowing=narrowing)
        return filters


class PushdownSource(ArchiveSource):
    """An ArchiveSource whose reader is told of filters."""

    def reader(self, schema: StructType) -> PushdownReader:
        return PushdownReader(super().reader(schema).plan)

"""Archives of PostgreSQL's logical replication (pgoutput) to Delta tables, in batches, on Spark."""

from __future__ import annotations

__version__ = "0.1.0"

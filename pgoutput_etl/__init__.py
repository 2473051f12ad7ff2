"""Archives of PostgreSQL's logical replication (pgoutput) to Delta tables, in batches, on Spark."""

__version__ = "0.1.0"

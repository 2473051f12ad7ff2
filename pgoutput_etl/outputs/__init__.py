"""What other tools read of runs and tables: metrics, lineage, dbt sources, and schemas of columns."""

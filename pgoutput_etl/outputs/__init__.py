"""Outputs for other tools, about runs and tables: metrics, lineage, dbt sources, and column schemas."""

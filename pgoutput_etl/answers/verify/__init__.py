"""Compares Delta tables with the rows in PostgreSQL, a CSV file, or another Delta table."""

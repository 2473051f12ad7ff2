"""Compares Delta tables with the rows that PostgreSQL, a CSV file or another Delta table holds."""

"""Prints some rows of a Delta table."""

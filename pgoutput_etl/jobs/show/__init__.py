"""Prints rows of a Delta table."""

"""Writes tables as of any commit as files that PostgreSQL loads."""

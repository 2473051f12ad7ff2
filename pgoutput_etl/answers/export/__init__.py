"""Exports tables as of any commit to files that PostgreSQL can load."""

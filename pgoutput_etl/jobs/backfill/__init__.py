"""Rebuilds tables from the archive, and assembles the archive anew to free held tables."""

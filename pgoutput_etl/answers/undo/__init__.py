"""Generates SQL that undoes transactions on the PostgreSQL server."""

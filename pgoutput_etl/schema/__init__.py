"""Relation versions, table shapes, differences between versions, and migration of rows from one shape to the next."""

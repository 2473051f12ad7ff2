"""Relation versions, table shapes, the difference between two shapes, and rows carried from one to the other."""

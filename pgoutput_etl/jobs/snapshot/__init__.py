"""Loads the rows that tables held before the replication slot was created."""

"""Turns message rows of one table into typed change events: INSERTs, UPDATEs, DELETEs, and key moves."""

"""The record of what was read and applied: batches, claims, files, transactions, relations, and tables."""

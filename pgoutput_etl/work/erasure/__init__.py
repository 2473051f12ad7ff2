"""Erases chosen rows from the landed files, the ledger, and the tables."""

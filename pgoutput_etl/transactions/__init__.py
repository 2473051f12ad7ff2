"""Assigns fragments to transactions, and tells how each transaction ended."""

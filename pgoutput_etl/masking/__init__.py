"""Columns that are dropped, hashed or redacted before their values leave the executor that scanned them."""

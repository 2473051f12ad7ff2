"""Drops, hashes, or redacts columns before their values leave the executor that scanned them."""

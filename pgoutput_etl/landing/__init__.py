"""Landed files: which are new, grown or renamed, and the order to read them in."""

"""Landed files: determines which ones are new, grown, or renamed, and the order to read them in."""

"""Landed files: determines which ones are new, grown, or renamed, and in which order to read them."""

"""Reads tables as of any commit."""

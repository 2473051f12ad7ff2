"""Compacts and vacuums a source's tables and trims its ledger."""

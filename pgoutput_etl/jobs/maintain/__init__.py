"""Compacts, vacuums and trims the tables and the ledger."""

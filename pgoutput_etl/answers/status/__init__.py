"""The state of a source, read from its ledger and its landing folder without Spark."""

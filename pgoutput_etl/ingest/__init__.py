"""Landed files become message rows on executors; transactions are assembled on the driver."""

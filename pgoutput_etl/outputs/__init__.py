"""The places outside of the ledger that hear of each run of `apply`: files, monitoring, and catalogs of lineage."""

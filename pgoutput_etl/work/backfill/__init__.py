"""The backfill job: rebuilds tables from the archive and redrives held tables."""

"""The apply job: brings every Delta table to the last commit in the archive."""

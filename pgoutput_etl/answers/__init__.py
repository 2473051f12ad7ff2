"""Read-only jobs: a source's state, its rows as of a commit, their differences from the server's, and SQL to undo
changes."""

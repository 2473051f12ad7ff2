"""The start job: from a server to tables with one command."""

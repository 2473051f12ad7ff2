"""What an archive contains: files, transactions, relations, messages and damage. Needs no Spark."""

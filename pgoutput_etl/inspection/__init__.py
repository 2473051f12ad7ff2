"""Reports an archive's files, transactions, relations, messages, and damage. Needs no Spark."""

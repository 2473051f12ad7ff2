"""Spark and Delta as this package uses them: session, Spark Connect, platforms, Delta tables. Knows no pgoutput."""

"""`spark.read.format("pgoutput")`: an archive's changes as a Python data source for Spark."""

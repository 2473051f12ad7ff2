"""Archives in notebooks: files, transactions, and tables as DataFrames, with or without Spark."""

"""Archives in notebooks: files, transactions and tables as DataFrames, without Spark."""

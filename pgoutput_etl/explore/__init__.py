"""An archive in a notebook: its files, transactions and tables, read without Spark."""

"""The whole pipeline in memory, one message at a time: the reference with which Spark's results are compared."""

"""The whole pipeline in memory, one message at a time: the reference that Spark's results are compared to."""

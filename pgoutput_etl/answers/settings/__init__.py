"""The contents of a configuration, and the origin of each setting of a table."""

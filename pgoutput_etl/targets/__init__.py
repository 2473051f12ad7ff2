"""Plans a batch before anything is written: each table's path, schema spans, and write method, or why it is held."""

"""What a configuration holds, and where each setting of a table comes from."""

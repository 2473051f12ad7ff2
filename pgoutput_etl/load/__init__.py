"""Change events become Delta commits: net effect, MERGE, one module per mode, schema evolution."""

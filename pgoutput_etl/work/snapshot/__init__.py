"""The snapshot job: loads rows from before the replication slot was created."""

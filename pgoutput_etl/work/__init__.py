"""What a batch does: one protocol runs every kind of work, and finishes what a run that died began."""

"""Which transaction a fragment belongs to, and how that transaction ended."""

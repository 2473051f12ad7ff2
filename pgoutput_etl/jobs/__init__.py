"""One module per job: its options, the call of what it does, and the print of its report."""

"""One module per job: its options, the call that does the work, and the printing of its report."""

"""One folder per job: its command line, its request, the run and its report."""

"""What the jobs are asked for on a command line, and how they answer there; a module for each."""

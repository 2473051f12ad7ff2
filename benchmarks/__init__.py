"""What is measured: `python -m benchmarks`, or `make bench`."""

"""A deterministic simulation of nights: one seed decides everything that happens to storage, clocks, and processes.

`python -m tests.simulation --seeds 10000` runs many; docs/reliability.md explains it.
"""

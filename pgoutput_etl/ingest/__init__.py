"""Turns landed files into message rows on executors, and assembles transactions on the driver."""

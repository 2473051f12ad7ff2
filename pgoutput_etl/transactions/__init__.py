"""Assigns fragments to transactions and determines how each transaction ended."""

"""The kinds of work that a batch may do beside landed files, which a later run finishes if theirs dies."""

"""The kinds of work that a batch can do. All follow one protocol, which finishes a batch that a dead run left open."""

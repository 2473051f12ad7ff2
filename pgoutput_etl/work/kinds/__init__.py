"""The kinds of work that a batch can do besides applying landed files. If their run dies, a later run finishes it."""

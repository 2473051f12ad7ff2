"""What only reads: a source's state, its rows at a moment, how they differ from the server's, and SQL made of them."""

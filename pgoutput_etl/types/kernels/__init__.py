"""The compiled twin of the loaders: columns of text or binary values to Arrow arrays."""

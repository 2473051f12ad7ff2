"""The compiled twin of the loaders: converts columns of text or binary values to Arrow arrays."""

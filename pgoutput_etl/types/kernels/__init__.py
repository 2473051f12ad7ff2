"""The compiled twin of the types' converters: columns of text or binary values to Arrow arrays."""

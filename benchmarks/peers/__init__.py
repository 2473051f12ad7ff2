"""Decoders in other languages, beside ours on the same file: small programs around the libraries that people use."""

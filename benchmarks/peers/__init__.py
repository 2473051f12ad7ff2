"""Decoders in other languages, measured on the same file: small programs around widely used libraries."""

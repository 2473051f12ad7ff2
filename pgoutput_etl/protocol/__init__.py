"""The pgoutput wire format: the byte reader, messages, decoder and framing of landed files."""

"""The pgoutput wire format: the byte reader, messages, the decoder, and the framing of landed files."""

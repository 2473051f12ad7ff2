"""Turns the bytes of one file into message rows and salvages unreadable ranges. `fast` is the compiled twin."""

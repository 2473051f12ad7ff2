"""The bytes of one file become message rows; unreadable ranges are salvaged. `fast` is the compiled twin."""

"""The compiled path of a scan: message columns, fragments, and rows, without an object per message."""

"""Message rows become typed change events: inserts, updates, deletes and key moves of one table."""

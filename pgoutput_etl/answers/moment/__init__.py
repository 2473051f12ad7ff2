"""Tables as of any commit."""

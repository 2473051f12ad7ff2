"""Reports what landed files contain; reads files only."""

"""The settings of the YAML file, checked in full before a run starts."""

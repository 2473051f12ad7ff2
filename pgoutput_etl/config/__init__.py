"""The settings in the YAML file, checked completely before a run starts."""

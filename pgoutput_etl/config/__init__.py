"""The YAML file as frozen dataclasses, checked in full before a run starts."""

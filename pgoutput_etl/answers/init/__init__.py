"""The init job: a first configuration for a landing folder."""

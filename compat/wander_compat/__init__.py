"""Runs environments of other libraries as Wander environments."""

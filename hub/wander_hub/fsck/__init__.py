"""Check the consistency of a hub's data, and repair derived data."""

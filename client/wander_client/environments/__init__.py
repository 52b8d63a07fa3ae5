"""Find, open and replay environments."""

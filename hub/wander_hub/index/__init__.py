"""The standard package index of every owner; pages are rendered whenever something changes."""

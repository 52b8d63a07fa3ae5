"""The standard package index of every owner, rendered on write."""

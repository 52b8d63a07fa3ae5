"""Environments with their immutable versions and files: listings, search, details."""

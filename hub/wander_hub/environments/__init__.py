"""Environments, their immutable versions and files: listing, search, details."""

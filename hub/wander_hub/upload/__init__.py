"""Uploads: one pipeline of small named checks, then store, then commit."""

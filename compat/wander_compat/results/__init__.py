"""Readers of what other libraries recorded."""

"""Trusted publishing: short-lived tokens for workflows that prove their identity."""

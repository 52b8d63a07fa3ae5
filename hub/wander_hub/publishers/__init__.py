"""Trusted publishing: short-lived tokens for workflows that prove who they are."""

"""Posting runs: receiving parts, checking them, and creating the run."""

"""Posting runs: parts arrive, are checked, and become a run."""

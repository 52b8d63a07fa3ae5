"""Verification: the hub replays posted runs and records the results."""

"""Reads results of other tools as runs: logs of Inspect, and records of Every Eval Ever."""

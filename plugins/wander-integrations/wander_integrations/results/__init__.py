"""Reads logs of Inspect and records of Every Eval Ever as runs, and writes runs as records."""

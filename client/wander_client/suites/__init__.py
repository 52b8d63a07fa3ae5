"""Suites: several evaluations from one file."""

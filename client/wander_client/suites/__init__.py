"""Suites: several evaluations that are played together."""

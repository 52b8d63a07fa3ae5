"""Runs: posted run folders, validated and aggregated by the hub itself."""

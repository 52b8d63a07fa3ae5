"""Runs: posted run folders, validated and summarised by the hub itself."""

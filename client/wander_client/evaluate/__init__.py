"""Evaluate from the command line: options, resuming, exhaustive evaluation."""

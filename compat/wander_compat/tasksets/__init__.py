"""Task sets of `verifiers.v1`, played by the real library."""

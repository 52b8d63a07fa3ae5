"""Task sets of `verifiers.v1`, which the real library plays."""

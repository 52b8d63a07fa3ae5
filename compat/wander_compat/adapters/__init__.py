"""Classic environments as environments of Wander, and the model as they see it."""

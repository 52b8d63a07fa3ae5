"""The parts of a rollout: hooks, calls of the model, calls to the outside, and where faults belong."""

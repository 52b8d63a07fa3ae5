"""The parts of a rollout: hooks, calls to the model, calls to outside, and the attribution of faults."""

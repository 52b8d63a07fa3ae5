"""What is measured and shown of a training run: evaluations, alerts, trackers, curves."""

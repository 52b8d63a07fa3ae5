"""What can be seen of a training run: alerts, trackers, samples, curves."""

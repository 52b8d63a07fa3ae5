"""Measuring and showing a training run: evaluations, alerts, trackers, curves."""

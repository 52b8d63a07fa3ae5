"""Evaluation: runner, run folders, statistics, reports. See `wander.evals.runner.evaluate`."""

"""Evaluation: runner, run folders, statistics, reports. See `wander.evals.run.runner.evaluate`."""

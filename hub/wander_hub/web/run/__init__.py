"""The pages of runs: one, its rollouts, a training run, several compared."""

"""Rollouts of a training step: the choice of examples, their environments, and the playing of rollouts."""

"""Losses of `wander train` other than GRPO, each with a TRL trainer on an environment's rollouts."""

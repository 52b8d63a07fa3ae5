"""Environments whose model works in a Python REPL and may ask models itself."""

from wander.envs.rlm.env import RLMEnv

__all__ = ["RLMEnv"]

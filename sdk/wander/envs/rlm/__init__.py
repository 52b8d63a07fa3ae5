"""Environments whose model works in a Python REPL and can call models from its code."""

from wander.envs.rlm.env import RLMEnv

__all__ = ["RLMEnv"]

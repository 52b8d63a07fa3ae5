"""Environments whose model calls Python functions."""

from wander.envs.tool.env import StatefulToolEnv, ToolEnv

__all__ = ["StatefulToolEnv", "ToolEnv"]

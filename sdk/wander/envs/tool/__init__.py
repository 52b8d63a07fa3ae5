"""Environments whose model calls Python functions."""

from wander.envs.tool.env import ToolEnv
from wander.envs.tool.stateful import StatefulToolEnv

__all__ = ["StatefulToolEnv", "ToolEnv"]

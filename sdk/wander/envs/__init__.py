"""Kinds of environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.envs.agent import AgentEnv
    from wander.envs.group import EnvGroup
    from wander.envs.mcp import MCPEnv, MCPServer
    from wander.envs.multi_turn import MultiTurnEnv
    from wander.envs.rlm import RLMEnv
    from wander.envs.rlm.repl import CellResult, Repl, ReplLimits
    from wander.envs.rlm.session import SubCallLimits
    from wander.envs.sandbox import SandboxEnv, run_commands
    from wander.envs.single_turn import SingleTurnEnv
    from wander.envs.tool import StatefulToolEnv, ToolEnv

__all__ = [
    "AgentEnv",
    "CellResult",
    "EnvGroup",
    "MCPEnv",
    "MCPServer",
    "MultiTurnEnv",
    "RLMEnv",
    "Repl",
    "ReplLimits",
    "SandboxEnv",
    "SingleTurnEnv",
    "StatefulToolEnv",
    "SubCallLimits",
    "ToolEnv",
    "run_commands",
]

__getattr__, __dir__ = lazy_names(__name__)

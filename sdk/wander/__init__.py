"""Wander: environments for language-model reinforcement learning that can be replayed.

Names are loaded when they are first used, so that `import wander` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from wander.errors import WanderError
from wander.types import Example, Message, Messages, Rollout, SamplingArgs, State, Turn

if TYPE_CHECKING:
    from wander.clients.base import Client
    from wander.clients.replay import ReplayClient
    from wander.clients.scripted import ScriptedClient
    from wander.dataset import Dataset, ProceduralRows
    from wander.environment import Environment, LocalEnvironment
    from wander.envs.group import EnvGroup
    from wander.envs.hooks import cleanup, stop, teardown
    from wander.envs.mcp import MCPEnv
    from wander.envs.mcp_connection import MCPServer
    from wander.envs.multi_turn import MultiTurnEnv
    from wander.envs.rlm import RLMEnv
    from wander.envs.single_turn import SingleTurnEnv
    from wander.envs.stateful_tool import StatefulToolEnv
    from wander.envs.tool import ToolEnv
    from wander.loading import load_environment
    from wander.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser
    from wander.rubrics import Rubric
    from wander.rubrics.group import RubricGroup
    from wander.rubrics.judge import JudgeRubric
    from wander.rubrics.math import MathRubric

__version__ = "0.1.0"

_HOMES = {
    "Client": "wander.clients.base",
    "ReplayClient": "wander.clients.replay",
    "ScriptedClient": "wander.clients.scripted",
    "Dataset": "wander.dataset",
    "ProceduralRows": "wander.dataset",
    "Environment": "wander.environment",
    "LocalEnvironment": "wander.environment",
    "cleanup": "wander.envs.hooks",
    "stop": "wander.envs.hooks",
    "teardown": "wander.envs.hooks",
    "EnvGroup": "wander.envs.group",
    "MCPEnv": "wander.envs.mcp",
    "MCPServer": "wander.envs.mcp_connection",
    "MultiTurnEnv": "wander.envs.multi_turn",
    "RLMEnv": "wander.envs.rlm",
    "SingleTurnEnv": "wander.envs.single_turn",
    "StatefulToolEnv": "wander.envs.stateful_tool",
    "ToolEnv": "wander.envs.tool",
    "load_environment": "wander.loading",
    "MaybeThinkParser": "wander.parsers",
    "Parser": "wander.parsers",
    "ThinkParser": "wander.parsers",
    "XMLParser": "wander.parsers",
    "Rubric": "wander.rubrics",
    "RubricGroup": "wander.rubrics.group",
    "JudgeRubric": "wander.rubrics.judge",
    "MathRubric": "wander.rubrics.math",
}

__all__ = [  # noqa: RUF022 - grouped by subject
    # values
    "Example",
    "Message",
    "Messages",
    "Rollout",
    "SamplingArgs",
    "State",
    "Turn",
    "WanderError",
    # environments
    "Dataset",
    "EnvGroup",
    "Environment",
    "LocalEnvironment",
    "MCPEnv",
    "MCPServer",
    "MultiTurnEnv",
    "ProceduralRows",
    "RLMEnv",
    "SingleTurnEnv",
    "StatefulToolEnv",
    "ToolEnv",
    "cleanup",
    "load_environment",
    "stop",
    "teardown",
    # answers and rewards
    "JudgeRubric",
    "MathRubric",
    "MaybeThinkParser",
    "Parser",
    "Rubric",
    "RubricGroup",
    "ThinkParser",
    "XMLParser",
    # clients
    "Client",
    "ReplayClient",
    "ScriptedClient",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module `wander` has no attribute `{name}`")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

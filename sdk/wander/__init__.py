"""Wander: replayable environments for reinforcement learning of language models.

Names are imported when they are first used, so that `import wander` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wander.errors import WanderError
from wander.lazy import installed_name, lazy_names
from wander.types import Example, Message, Messages, Rollout, SamplingArgs, State
from wander.version import __version__ as __version__

if TYPE_CHECKING:
    # The only imports from wander-client, for type checkers. `wander.lazy` finds these names at run time.
    from wander_client import Hub, Run, load, new_model, sft, train

    from wander.clients.base import Client
    from wander.clients.replay import ReplayClient
    from wander.clients.scripted import ScriptedClient
    from wander.dataset import ProceduralRows
    from wander.environment import Environment, LocalEnvironment
    from wander.envs.group import EnvGroup
    from wander.envs.mcp.connection import MCPServer
    from wander.envs.mcp.env import MCPEnv
    from wander.envs.multi_turn import MultiTurnEnv
    from wander.envs.rlm.env import RLMEnv
    from wander.envs.sandbox import SandboxEnv
    from wander.envs.single_turn import SingleTurnEnv
    from wander.envs.tool.env import StatefulToolEnv, ToolEnv
    from wander.loading import load_environment
    from wander.parsers import MaybeThinkParser, Parser, ThinkParser, XMLParser
    from wander.rollout.hooks import cleanup, stop, teardown
    from wander.rubrics import Rubric
    from wander.rubrics.group import RubricGroup
    from wander.rubrics.judge import JudgeRubric
    from wander.rubrics.math import MathRubric

__all__ = [  # noqa: RUF022 - grouped by subject
    # values
    "Example",
    "Message",
    "Messages",
    "Rollout",
    "SamplingArgs",
    "State",
    "WanderError",
    # environments
    "EnvGroup",
    "Environment",
    "LocalEnvironment",
    "MCPEnv",
    "MCPServer",
    "MultiTurnEnv",
    "ProceduralRows",
    "RLMEnv",
    "SandboxEnv",
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
    # provided by wander-client
    "Hub",
    "Run",
    "load",
    "new_model",
    "sft",
    "train",
]


def _bring(name: str) -> Any:
    if name == "train":
        from importlib import import_module

        return import_module("wander.train")  # this package can be called like a function
    return installed_name(name)


__getattr__, __dir__ = lazy_names(__name__, _bring)

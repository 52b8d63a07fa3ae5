"""The classic `verifiers` API of generations 0.1.3 to 0.3.1, implemented by Wander.

`import verifiers as vf` leads to this package through `wander_compat.alias`, so environments that were
published for any of these releases run unchanged. Written from the API's documentation and observed behavior.
Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from wander_compat.alias import RENTED_NAMES

__version__ = "0.3.1.post100"

_HOME = "wander_compat.verifiers."

_NAMES: dict[str, tuple[str, ...]] = {
    "envs.environment": ("Environment",),
    "envs.multi_turn": ("MultiTurnEnv", "SingleTurnEnv"),
    "envs.tool_env": ("ToolEnv", "StatefulToolEnv"),
    "envs.env_group": ("EnvGroup",),
    "envs.gym_env": ("GymEnv",),
    "envs.reasoning_gym_env": ("ReasoningGymEnv",),
    "envs.text_arena_env": ("TextArenaEnv",),
    "envs.mcp_env": ("MCPEnv",),
    "envs.rlm_env": ("RLMEnv",),
    "envs.sandbox_env": ("SandboxEnv", "PythonEnv"),
    "unavailable": tuple(RENTED_NAMES),
    "parsers": ("Parser", "XMLParser", "ThinkParser", "MaybeThinkParser"),
    "rubrics.rubric": ("Rubric",),
    "rubrics.rubric_group": ("RubricGroup",),
    "rubrics.judge_rubric": ("JudgeRubric",),
    "rubrics.math_rubric": ("MathRubric",),
    "rubrics.tool_rubric": ("ToolRubric",),
    "decorators": ("stop", "cleanup", "teardown", "setup", "update", "reward", "metric", "advantage"),
    "data": ("extract_boxed_answer", "extract_hash_answer", "load_example_dataset"),
    "envs.loading": ("load_environment", "ensure_keys"),
    "logs": ("setup_logging", "log_level", "quiet_verifiers", "print_prompt_completions_sample"),
    "clients": ("Client", "OpenAIChatCompletionsClient"),
    "errors": (
        "Error",
        "ModelError",
        "InvalidModelResponseError",
        "EmptyModelResponseError",
        "OverlongPromptError",
        "ToolError",
        "ToolParseError",
        "ToolCallError",
        "InfraError",
        "TunnelError",
        "SandboxError",
        "BrowserSandboxError",
        "MissingKeyError",
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    home = _HOMES.get(name)
    if home is not None:
        value = getattr(importlib.import_module(_HOME + home), name)
    else:
        types = importlib.import_module(_HOME + "types")
        if not hasattr(types, name):
            raise AttributeError(f"module `verifiers` has no attribute `{name}`")
        value = getattr(types, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

"""Makes `import verifiers` work for environments: the classic API's modules lead to those of this package.

Nothing of the API is loaded before it is imported. If another distribution named `verifiers` is installed, it
is left unchanged.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

NAME = "verifiers"
HOME = "wander_compat.verifiers"

MODULES: dict[str, str] = {
    "types": "types",
    "errors": "errors",
    "decorators": "decorators",
    "clients.client": "clients",
    "clients.openai_chat_completions_client": "clients",
    "parsers.parser": "parsers",
    "parsers.xml_parser": "parsers",
    "parsers.think_parser": "parsers",
    "parsers.maybe_think_parser": "parsers",
    "rubrics.rubric": "rubrics.rubric",
    "rubrics.rubric_group": "rubrics.rubric_group",
    "rubrics.judge_rubric": "rubrics.judge_rubric",
    "rubrics.math_rubric": "rubrics.math_rubric",
    "rubrics.experimental.hybrid_math_rubric": "rubrics.hybrid_math_rubric",
    "rubrics.tool_rubric": "rubrics.tool_rubric",
    "rubrics.multiturn_monitor_rubric": "rubrics.tool_rubric",
    "envs.environment": "envs.environment",
    "envs.multiturn_env": "envs.multi_turn",
    "envs.singleturn_env": "envs.multi_turn",
    "envs.tool_env": "envs.tool_env",
    "envs.stateful_tool_env": "envs.tool_env",
    "envs.env_group": "envs.env_group",
    "envs.experimental.gym_env": "envs.gym_env",
    "envs.gym_env": "envs.gym_env",
    "envs.sandbox_env": "envs.sandbox_env",
    "envs.python_env": "envs.sandbox_env",
    "envs.integrations.reasoninggym_env": "envs.reasoning_gym_env",
    "envs.reasoninggym_env": "envs.reasoning_gym_env",
    "envs.integrations.textarena_env": "envs.text_arena_env",
    "envs.textarena_env": "envs.text_arena_env",
    "envs.experimental.rlm_env": "envs.rlm_env",
    "envs.experimental.mcp_env": "envs.mcp_env",
    "envs.mcp_env": "envs.mcp_env",
    "utils.data_utils": "data",
    "utils.async_utils": "async_calls",
    "utils.save_utils": "outputs",
    "utils.response_utils": "types",
    "utils.tool_utils": "envs.tool_env",
    "utils.message_utils": "messages.conversion",
    "utils.logging_utils": "logs",
    "utils.eval_utils": "logs",
    "utils.path_utils": "outputs",
    "utils.env_utils": "envs.loading",
    "utils.config_utils": "envs.loading",
    "utils.error_utils": "errors",
    "utils.client_utils": "clients",
}
"""Modules of the classic API under `verifiers.`, and the corresponding modules under
`wander_compat.verifiers.`."""

PACKAGES = frozenset(
    {"clients", "parsers", "rubrics", "rubrics.experimental", "envs", "envs.experimental"}
    | {"envs.integrations", "utils"}
)
"""Packages of the classic API whose names all come from the top level of this package."""


AGENT = "an agent that runs in a rented sandbox"
BROWSER = "a rented browser"
SANDBOX = "the client of a rented sandbox"

RENTED: dict[str, str] = {
    "envs.experimental.cli_agent_env": AGENT,
    "envs.experimental.composable": AGENT,
    "envs.experimental.harbor_env": AGENT,
    "envs.experimental.opencode_env": AGENT,
    "envs.experimental.opencode_qa_env": AGENT,
    "envs.experimental.opencode_rlm_env": AGENT,
    "envs.experimental.sandbox_mixin": SANDBOX,
    "envs.integrations.browser_env": BROWSER,
    "envs.integrations.openenv_env": "a server of the OpenEnv project",
    "utils.interception_utils": AGENT,
    "utils.sandbox_exec_utils": SANDBOX,
    "utils.threaded_sandbox_client": SANDBOX,
    "utils.tunnel_utils": "a tunnel to a rented sandbox",
}
"""Unavailable modules under `verifiers.`, including everything below them, and what their names would
need."""
RENTED_NAMES: dict[str, str] = {
    "BrowserEnv": BROWSER,
    "CliAgentEnv": AGENT,
    "ComposableEnv": AGENT,
    "HarborEnv": AGENT,
    "OpenCodeEnv": AGENT,
    "OpenEnvEnv": RENTED["envs.integrations.openenv_env"],
    "SandboxMixin": SANDBOX,
}
"""Unavailable names at the top level of `verifiers`, and what they would need."""


def serve_imports() -> None:
    """Make `import verifiers` find this package, unless upstream's is installed. May be called repeatedly."""
    if not any(isinstance(finder, VerifiersFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, VerifiersFinder())


def has_upstream() -> bool:
    """Return whether upstream's package `verifiers` is installed."""
    spec = importlib.machinery.PathFinder.find_spec(NAME)
    if spec is None or spec.origin is None:
        return False
    with open(spec.origin, encoding="utf-8") as source:
        text = source.read()
    return "wander_compat" not in text


class VerifiersFinder(importlib.abc.MetaPathFinder):
    """Finds `verifiers` and everything below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of the classic API, or None for any other module."""
        if fullname == NAME:
            return None if has_upstream() else _spec(fullname, HOME)
        top, _, inner = fullname.partition(".")
        if top != NAME or getattr(sys.modules.get(NAME), "__name__", NAME) != HOME:
            return None
        if inner in PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, _PackageLoader(), is_package=True)
        needs = need_of(inner)
        if needs is not None:
            return importlib.machinery.ModuleSpec(fullname, _UnavailableLoader(needs), is_package=True)
        home = MODULES.get(inner)
        return None if home is None else _spec(fullname, f"{HOME}.{home}")


def need_of(module: str) -> str | None:
    """Return what the names of a module under `verifiers.` need, or None if Wander offers the module."""
    parents = [module.rsplit(".", count)[0] for count in range(module.count(".") + 1)]
    return next((RENTED[parent] for parent in parents if parent in RENTED), None)


def _spec(name: str, home: str) -> importlib.machinery.ModuleSpec:
    return importlib.machinery.ModuleSpec(name, AliasLoader(home), is_package=name == NAME)


class AliasLoader(importlib.abc.Loader):
    """Replaces the imported module with another one."""

    def __init__(self, target: str) -> None:
        self._target = target

    def exec_module(self, module: ModuleType) -> None:
        """Import the target, and register it under the imported name."""
        sys.modules[module.__name__] = importlib.import_module(self._target)


class _PackageLoader(importlib.abc.Loader):
    """Creates an empty package."""

    def exec_module(self, module: ModuleType) -> None:
        def find(name: str) -> Any:
            inner = f"{module.__name__.partition('.')[2]}.{name}"
            if inner in MODULES or inner in PACKAGES or need_of(inner) is not None:
                return importlib.import_module(f"{NAME}.{inner}")
            return getattr(importlib.import_module(HOME), name)

        module.__getattr__ = find  # type: ignore[method-assign]


class _UnavailableLoader(importlib.abc.Loader):
    """Creates a module whose names can be imported but not used."""

    def __init__(self, needs: str) -> None:
        self._needs = needs

    def exec_module(self, module: ModuleType) -> None:
        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(f"module `{module.__name__}` has no attribute `{name}`")
            return importlib.import_module(f"{HOME}.unavailable").unavailable(name, self._needs)

        module.__getattr__ = find  # type: ignore[method-assign]

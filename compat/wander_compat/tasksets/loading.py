"""Turns a module with a task set into an environment, with settings and programs as in its release."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

from wander.errors import ConfigError
from wander.worker.openai_proxy import BASE_VARIABLE, KEY_VARIABLE

from wander_compat.tasksets.boxes import use_boxes
from wander_compat.tasksets.environment import TasksetEnvironment
from wander_compat.tasksets.harness import chat_harness
from wander_compat.tasksets.programs import prepare_programs_here
from wander_compat.tasksets.release_0_2 import RolloutEnvironment


def load_taskset(
    module: str,
    *,
    harness: str | dict[str, Any] | None = None,
    env: dict[str, Any] | None = None,
    **arguments: Any,
) -> TasksetEnvironment:
    """Load the task set exported by a module.

    `arguments` are the task set's own settings. `harness` selects the program, by the library's id or with
    settings. By default, a task set without its own program is a chat with the task's tools. `env` contains
    further settings of the library's environment. Agents play in processes of this machine unless the package
    pins another runtime. Raises `ConfigError` for settings that the library rejects.
    """
    # Judges without their own endpoint call the host, which has the key and records the answers.
    for theirs, ours in (("PRIME_INFERENCE_URL", BASE_VARIABLE), ("PRIME_API_KEY", KEY_VARIABLE)):
        if ours in os.environ:
            os.environ.setdefault(theirs, os.environ[ours])
    prepare_programs_here(module)
    harness_settings: dict[str, Any] | None = {"id": harness} if isinstance(harness, str) else harness
    settings = {**(env or {}), "taskset": {**(env or {}).get("taskset", {}), "id": module, **arguments}}
    library = importlib.import_module("verifiers.v1")
    try:
        if hasattr(library, "Environment"):
            return _load_0_2(library, module, harness_settings, settings)
        loaders = importlib.import_module("verifiers.v1.utils.loaders")
        config = loaders.resolve_env_config(settings)
        return TasksetEnvironment(loaders.load_environment(_with_programs(config, module, harness_settings)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"`{module}` cannot be set up: {error}") from error


def _load_0_2(
    library: Any, module: str, harness_settings: dict[str, Any] | None, settings: dict[str, Any]
) -> RolloutEnvironment:
    """Load a task set of 0.2, which has one agent and one program."""
    if harness_settings is None and library.default_harness_id(module) != module:
        harness_settings = {"id": chat_harness()}
    config = library.EnvConfig.model_validate(
        {**settings, **({"harness": harness_settings} if harness_settings else {})}
    )
    return RolloutEnvironment(library.Environment(config))


def _with_programs(config: Any, module: str, harness_settings: dict[str, Any] | None) -> Any:
    """Return the settings, with a program and a runtime for every agent that lacks them."""
    seat = importlib.import_module("verifiers.v1.agent").AgentConfig
    runtimes = importlib.import_module("verifiers.v1.runtimes")
    loaders: ModuleType = importlib.import_module("verifiers.v1.utils.loaders")
    if harness_settings is None and loaders.default_harness_id(module) != module:
        harness_settings = {"id": chat_harness()}
    task_needs = getattr(loaders.taskset_class(module).task_type(), "NEEDS_CONTAINER", False)
    in_box = use_boxes()
    changed = {}
    for name, agent in ((name, value) for name, value in config if isinstance(value, seat)):
        update: dict[str, Any] = {}
        if agent.harness is None and harness_settings is not None:
            update["harness"] = loaders.harness_config_type(harness_settings["id"]).model_validate(
                harness_settings
            )
        if isinstance(agent.runtime, runtimes.PrimeConfig):
            program = update.get("harness", agent.harness)
            kind = loaders.harness_class(module if program is None else program.id)
            update["runtime"] = in_box(_needs_box(kind) or task_needs)
        changed[name] = agent.model_copy(update=update)
    return config.model_copy(update=changed)


def _needs_box(harness: Any) -> bool:
    """Return whether a program must not run in the worker. Raises `ValueError` if it cannot run in a box."""
    needed = bool(getattr(harness, "NEEDS_CONTAINER", False))
    if needed and harness.__module__.startswith("verifiers."):
        raise ValueError(
            f"`{harness.__name__}` installs its program when a rollout starts, but a box has no network; "
            "leave out `harness`, so that the model gets a tool `bash` in the box"
        )
    return needed

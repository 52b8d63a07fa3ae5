"""Loads an environment by the name of its package, like the classic API."""

from __future__ import annotations

import importlib
import os
from typing import Any

from wander_compat.verifiers.envs.environment import Environment
from wander_compat.verifiers.errors import MissingKeyError


def load_environment(env_id: str, **env_args: Any) -> Environment:
    """Import the module of an environment and call its `load_environment`.

    `owner/my-env@1.0` refers to the module `my_env`. Raises `ImportError` with the true cause, and any
    exception of the package.
    """
    name = env_id.rpartition("/")[2].partition("@")[0]
    module = importlib.import_module(name.replace("-", "_"))
    make = getattr(module, "load_environment", None)
    if make is None:
        raise AttributeError(f"`{module.__name__}` has no function `load_environment`")
    env: Environment = make(**env_args)
    env.env_id = env.env_id or name
    env.env_args = env.env_args or env_args
    return env


def ensure_keys(keys: list[str]) -> None:
    """Raise `MissingKeyError` for environment variables that are not set."""
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)

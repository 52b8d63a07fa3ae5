"""The adapter that `wander.loading` finds through the entry point group `wander.adapters`.

It recognizes environments written for `verifiers` by the names of their classes. The API, the adapters and
the real library are imported only for such environments.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from wander.environment import Environment
from wander.errors import LoadError

from wander_compat.alias import HOME, NAME
from wander_compat.alias import serve_imports as serve_imports


def find_factory(module: ModuleType, named: Any) -> Callable[..., Any] | None:
    """Return a function that loads a task set of `verifiers.v1`: the named class, or the exported one.

    Functions of a module that uses the library are called after the global generators are seeded, because
    published environments draw their rows from them.
    """
    if named is not None and not isinstance(named, type):
        return _draw_the_same(named) if HOME in sys.modules and callable(named) else None
    exported = [getattr(module, name, None) for name in getattr(module, "__all__", ())]
    classes = [value for value in (exported if named is None else [named]) if isinstance(value, type)]
    if not any("verifiers.v1.taskset.Taskset" in _classes(*kind.__mro__[1:]) for kind in classes):
        return None
    from wander_compat.tasksets.loading import load_taskset

    return functools.partial(load_taskset, module.__name__)


def _draw_the_same(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def load(*args: Any, **kwargs: Any) -> Any:
        from wander_compat.adapters.host_client import settle

        settle("load")
        return factory(*args, **kwargs)

    return load


def adapt(made: object) -> Environment | None:
    """Adapt an environment of the classic API or of `verifiers.v1`. Returns None for other objects."""
    classes = _classes(type(made))
    if f"{HOME}.envs.environment.Environment" in classes:
        from wander_compat.adapters.classic import AdaptedEnvironment

        return AdaptedEnvironment(made)  # type: ignore[arg-type]
    if {"verifiers.v1.env.Env", "verifiers.envs.environment.Environment"} <= classes:
        from wander_compat.tasksets.release_0_1 import StateEnvironment

        return StateEnvironment(made)
    if "verifiers.v1.env.Env" in classes:
        from wander_compat.tasksets.environment import TasksetEnvironment

        return TasksetEnvironment(made)
    if any(name.startswith(f"{NAME}.") for name in classes):
        raise LoadError(
            "the environment was loaded with the upstream `verifiers`, which Wander cannot host",
            hint="install it with `wander install`, or uninstall `verifiers` from this Python environment",
        )
    return None


def _classes(*kinds: type) -> set[str]:
    return {f"{cls.__module__}.{cls.__name__}" for kind in kinds for cls in kind.__mro__}

"""Public names that a package imports when they are first used (PEP 562), so that importing it stays cheap.

Where each name comes from stands once: in the imports that the package makes `if TYPE_CHECKING`. Names of
another distribution, such as `wander.load`, are found at run time by its entry points of the group
`wander.names` (`bring_name`), so that nothing here imports it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from wander.system.python_parser import parse_alone

GROUP = "wander.names"


def lazy_names(
    package: str, bring: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are those of its `__all__`.

    `bring` returns names whose home lies in another distribution, which the package must not import.
    """
    module = sys.modules[package]

    @cache
    def homes() -> dict[str, str]:
        tree = parse_alone(lambda: ast.parse(inspect.getsource(module)))
        guarded = next(node for node in tree.body if isinstance(node, ast.If))
        imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def load(name: str) -> Any:
        if name.startswith("__") or name not in homes():
            raise AttributeError(f"module `{package}` has no attribute `{name}`")
        home = homes()[name]
        if bring is not None and home.partition(".")[0] != package.partition(".")[0]:
            value = bring(name)
        else:
            value = getattr(importlib.import_module(home), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(module), *module.__all__})

    return load, names


def bring_name(name: str) -> Any:
    """Return what is installed under a name, else a function that raises `MissingClient` when it is called.

    So `from wander import load` works everywhere: environments import `wander` where no client is installed.
    """
    found = _find(name)
    if found is not None:
        return found

    def missing(*arguments: Any, **options: Any) -> Any:
        from wander.errors import MissingClient

        late = _find(name)  # it may have been installed since, from a cell of a notebook
        if late is None:
            raise MissingClient(f"wander.{name}")
        return late(*arguments, **options)

    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = "Comes with wander-client, which is not installed."
    return missing


def _find(name: str) -> Any | None:
    from importlib.metadata import entry_points  # here, as most names have no need of it

    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    return None if entry is None else entry.load()

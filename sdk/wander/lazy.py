"""Lazy imports of a package's public names (PEP 562), so that importing the package is fast.

The module of each name is declared only once, in the package's imports below `if TYPE_CHECKING`. Names of
another distribution, such as `wander.load`, are found at run time through its entry points in the group
`wander.names` (`installed_name`), so this package never imports that distribution.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

GROUP = "wander.names"


def lazy_names(
    package: str, bring: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose public names are listed in its `__all__`.

    `bring` returns the names that belong to another distribution, which the package must not import.
    """
    module = sys.modules[package]

    @cache
    def homes() -> dict[str, str]:
        from wander.system.python_parser import parse_alone  # `import wander` does without

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


def installed_name(name: str) -> Any:
    """Return the object that is installed under a name, or a function that raises `MissingPlugin` when
    called.

    `from wander import load` therefore works everywhere, even if wander-client is not installed, as it often
    is for environments.
    """
    installed = find_plugin(GROUP, name)
    if installed is not None:
        return installed

    def missing(*arguments: Any, **options: Any) -> Any:
        # A notebook cell may have installed wander-client since the import.
        return load_plugin(GROUP, name, f"`wander.{name}`", "wander-client")(*arguments, **options)

    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = "Comes with wander-client, which is not installed."
    return missing


def find_plugin(group: str, name: str) -> Any | None:
    """Return the object of an installed entry point, or None."""
    from importlib.metadata import entry_points  # imported here, because most programs do not need it

    entry = next(iter(entry_points(group=group, name=name)), None)
    return None if entry is None else entry.load()


def load_plugin(group: str, name: str, title: str, distribution: str, hub: str | None = None) -> Any:
    """Return the object of an entry point.

    Raises `MissingPlugin` if it is not installed. The message contains the title and the distribution, and
    the hint contains the command that installs this distribution from a hub.
    """
    plugin = find_plugin(group, name)
    if plugin is None:
        from wander.errors import MissingPlugin

        raise MissingPlugin(title, distribution, hub)
    return plugin

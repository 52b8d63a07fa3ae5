"""Adapters, which load environments of other libraries and are found through entry points.

A distribution registers a module or an object in the entry point group `wander.adapters`, and
`wander.loading` asks all of them. This module therefore does not need to know any of these libraries.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from wander.errors import LoadError

GROUP = "wander.adapters"


class Adapter(Protocol):
    """The interface of an entry point in this group. It is imported before every environment, so keep it
    light."""

    @property
    def __file__(self) -> str | None:
        """Path of the adapter; `wander test` does not attribute actions of files in its folder to the
        environment."""

    def serve_imports(self) -> None:
        """Prepare the import of an environment's module that uses the library; called before each such
        import."""

    def find_factory(self, module: ModuleType, named: Any) -> Callable[..., Any] | None:
        """Return the function that loads the environment of a module, instead of the one its entry point
        names.

        `named` is the object that the entry point names: a function, a class, or None if the module does not
        have it. Returns None if the module does not use the library, or if `named` loads the environment
        itself.
        """

    def adapt(self, made: object) -> object | None:
        """Convert an object that a factory returned to a `wander.Environment`; None if it is not from the
        library.

        Raises `LoadError` if the object cannot be played.
        """


@functools.cache
def adapters() -> tuple[Adapter, ...]:
    """Return the installed adapters, by name; raises `LoadError` if an adapter cannot be imported."""
    loaded = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            loaded.append(entry.load())
        except (ImportError, AttributeError) as error:
            distribution = entry.dist.name if entry.dist else entry.value
            raise LoadError(
                f"the adapter `{entry.name}` cannot be imported: {error}",
                hint=f"reinstall `{distribution}` from the index that it came from",
            ) from error
    return tuple(loaded)


def folders() -> list[str]:
    """Return the folders of the installed adapters."""
    return [str(Path(adapter.__file__).parent) for adapter in adapters() if adapter.__file__]

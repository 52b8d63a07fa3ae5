"""The names of `import wander` that wander-client brings, such as `load` and `train`.

A distribution says in the entry point group `wander.names` where such a name lives, so nothing here knows
which one it is.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from wander.errors import MissingClient

GROUP = "wander.names"


def bring(name: str) -> Any:
    """Return what is installed under a name, else a function that raises `MissingClient` when it is called.

    So `from wander import load` works everywhere: environments import `wander` where no client is installed.
    """
    found = _find(name)
    if found is not None:
        return found

    def missing(*arguments: Any, **options: Any) -> Any:
        late = _find(name)  # it may have been installed since, from a cell of a notebook
        if late is None:
            raise MissingClient(f"wander.{name}")
        return late(*arguments, **options)

    missing.__name__ = missing.__qualname__ = name
    missing.__doc__ = "Comes with wander-client, which is not installed."
    return missing


def _find(name: str) -> Any | None:
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    return None if entry is None else entry.load()

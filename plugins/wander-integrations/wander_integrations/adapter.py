"""The entry point of the group `wander.adapters`: what this folder does is not an environment's own doing.

`wander check` therefore counts no clock or randomness that is read in here against an environment. What this
distribution makes is an environment of ours already, so there is nothing to adapt.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any


def serve_imports() -> None:
    """Change nothing: an environment imports this distribution by its own name."""


def find_factory(module: ModuleType, named: Any) -> None:
    """Leave every module to what its entry point names."""


def adapt(made: object) -> None:
    """Leave every object as it is."""

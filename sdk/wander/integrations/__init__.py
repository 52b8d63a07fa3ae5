"""Ways for other trainers to play an environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.integrations.stepped import SteppedRollout

__all__ = [
    "SteppedRollout",
]

__getattr__, __dir__ = lazy_names(__name__)

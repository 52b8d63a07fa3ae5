"""The comparison of rollouts that ran commands in a box."""

from __future__ import annotations

from wander.boxes.base import SYSTEM
from wander.types import Rollout

BOX = "box"
"""Key of a rollout's `info` with the final state of its box."""


def without_output(rollout: Rollout) -> Rollout:
    """Return a rollout without the text of its tool messages and without the version of the host's system."""
    box = rollout.info.get(BOX)
    info = rollout.info
    if isinstance(box, dict) and str(box.get("image")).startswith(SYSTEM):
        info = {**info, BOX: {**box, "image": SYSTEM}}
    completion = [
        {**message, "content": ""} if message.get("role") == "tool" else message
        for message in rollout.completion
    ]
    return rollout.model_copy(update={"completion": completion, "info": info})

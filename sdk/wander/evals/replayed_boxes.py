"""The comparison of rollouts that ran commands in a box."""

from __future__ import annotations

from wander.boxes.base import RECORD, SYSTEM
from wander.types import Rollout


def without_output(rollout: Rollout) -> Rollout:
    """Return a rollout without the text of its tool messages and without the version of the host's system."""
    box = rollout.info.get(RECORD)
    info = rollout.info
    if isinstance(box, dict) and str(box.get("image")).startswith(SYSTEM):
        info = {**info, RECORD: {**box, "image": SYSTEM}}
    completion = [
        {**message, "content": ""} if message.get("role") == "tool" else message
        for message in rollout.completion
    ]
    return rollout.model_copy(update={"completion": completion, "info": info})

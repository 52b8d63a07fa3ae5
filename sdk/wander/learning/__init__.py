"""Proof of learning: a fixed recipe that trains a tiny policy on an environment, with the same bits anywhere.

`wander.learning.proof` starts the recipe in a process with one thread and a fixed set of instructions.
`wander.learning.recipe` is that process: it imitates transcripts, then learns from rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wander.lazy import lazy_names

if TYPE_CHECKING:
    from wander.learning.proof import prove_learning
    from wander.wire.verification import LearningReport

__all__ = ["LearningReport", "prove_learning"]

__getattr__, __dir__ = lazy_names(__name__)

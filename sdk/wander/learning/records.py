"""The sizes of the recipe, and the request to its process."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from wander.sandbox import SandboxPolicy
from wander.sandbox.visible import Runtime
from wander.types import Record


class Recipe(Record):
    """Sizes of the recipe. The defaults are the recipe; only tests use smaller sizes.

    Sizes in tokens keep the processor time similar for short and long rollouts: a step has more rollouts if
    they are short.
    """

    transcripts: int = 1000
    """Number of training examples that the expert or the random player plays."""
    hidden: int = 64
    layers: int = 3
    context: int = 1024
    """Maximum number of tokens in a conversation."""
    spelled: int = 600
    """Mean number of characters of a transcript up to which each letter is a token."""
    imitation_blocks: int = 8
    imitation_steps: int = 100
    """Steps of a block. Imitation ends after the block in which the policy reaches `imitation_goal`."""
    imitation_tokens: int = 6144
    """Tokens in a step of imitation, which has between 8 and 64 transcripts."""
    imitation_goal: float = 0.3
    """Share of the way from the untrained policy's reward to the reward of the transcripts. The rest of the
    way is left to the rewards."""
    probe_examples: int = 64
    """Number of training examples that measure the policy between blocks."""
    steps: int = 40
    rollout_tokens: int = 24_576
    """Tokens in a step of GRPO, which has between 32 and 256 rollouts."""
    most_turn_tokens: int = 160
    """Maximum number of tokens in a turn."""
    learning_rate: float = 1e-3
    points: int = 4
    """Number of evaluations after the first one."""
    examples: int = 200
    """Number of held-out examples."""
    cpu_seconds: int = 600
    """Limit of the recipe's processor time. A recipe that exceeds it is not shown."""
    memory_bytes: int = 8 * 1024**3
    """Limit of the memory of the process. The libraries take 1.5 GiB of it when they are imported."""


class LearningRequest(Record):
    """Request to the recipe's process."""

    target: str
    is_path: bool
    arguments: dict[str, Any] = Field(default_factory=dict)
    python: str
    """Interpreter that the environment runs in."""
    sandbox: SandboxPolicy | None = None
    runtime: Runtime | None = None
    recipe: Recipe = Field(default_factory=Recipe)
    folder: str
    """Folder for the models and for the environment's log."""

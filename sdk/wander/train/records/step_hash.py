"""Hashes of every training step by part, so that a repetition shows the first difference and its part.

`rollouts` covers the tokens that were seen and sampled, and the log-probabilities of the sampled tokens.
`rewards` covers the environment's results. `update` covers loss, gradient norm and learning rate. All values
are hashed bit for bit. The weights are hashed as often as half a percent of the time allows, and always after
the first and the last step.
"""

from __future__ import annotations

import hashlib
import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

import torch

from wander.evals.store import jsonl
from wander.models.engines.weights import whole_weight
from wander.train.distributed import is_sharded
from wander.types import Record, Rollout

STEPS = "steps.jsonl"
SHARE = 0.005
"""Maximum share of the training time for hashing weights."""

UPDATE = ("loss", "grad_norm", "learning_rate")
"""Metrics that `update` covers."""

Part = Literal["rollouts", "rewards", "update", "weights"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Parts in the order in which a step computes them, so that the first difference is the cause of later
ones."""


class StepHash(Record):
    """A line of `steps.jsonl`; every hash is a SHA-256."""

    step: int
    rollouts: str
    rewards: str
    update: str
    weights: str | None = None
    """Hash of the trained parameters after the step; None if they were not hashed."""

    def first_difference(self, other: StepHash) -> Part | None:
        """Return the first part in which two steps differ; weights are compared only if both steps have
        them."""
        for part in PARTS:
            own, theirs = getattr(self, part), getattr(other, part)
            if own != theirs and None not in (own, theirs):
                return part
        return None


class WeightClock:
    """Hashes weights as often as `SHARE` of the time allows, and after the first and the last step."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._spent = self._last = 0.0

    def hash_weights(self, model: Any, step: int, steps: int) -> str | None:
        """Return the hash of the weights after step `step` of `steps`, or None if hashing is not due."""
        now = perf_counter()
        # All processes must hash a sharded policy at the same steps, so their clocks must not decide.
        due = not is_sharded(model) and self._spent + self._last <= SHARE * (now - self._started)
        if model is None or not (due or step in (1, steps)):
            return None
        digest = weights_hash(model)
        self._last = perf_counter() - now
        self._spent += self._last
        return digest


def rollouts_hash(rollouts: Sequence[Rollout]) -> str:
    """Hash the tokens that the policy saw and sampled, in the order of the step."""
    whole = hashlib.sha256()
    for rollout in rollouts:
        whole.update(_frame(rollout.example_id, rollout.index, rollout.seed, len(rollout.turns)))
        for turn in rollout.turns:
            if turn.tokens is None:
                whole.update(b"-")
                continue
            ids, sampled = turn.tokens.prompt_ids, turn.tokens.completion_ids
            whole.update(struct.pack("<QQ", len(ids), len(sampled)))
            whole.update(array("q", ids).tobytes() + array("q", sampled).tobytes())
            whole.update(array("d", turn.tokens.logprobs).tobytes())
    return whole.hexdigest()


def rewards_hash(rollouts: Sequence[Rollout]) -> str:
    """Hash the environment's results: the reward and every metric, or the boundary of the failure."""
    whole = hashlib.sha256()
    for rollout in rollouts:
        failed = rollout.failure.boundary if rollout.failure is not None else ""
        metrics = [[name, _bits(value)] for name, value in sorted(rollout.metrics.items())]
        whole.update(_frame(rollout.example_id, rollout.index, failed, _bits(rollout.reward), metrics))
    return whole.hexdigest()


def update_hash(metrics: Mapping[str, Any]) -> str:
    """Hash the results of the update."""
    return hashlib.sha256(_frame(*(_bits(metrics.get(name)) for name in UPDATE))).hexdigest()


def weights_hash(model: Any) -> str:
    """Hash the names and bytes of the trained parameters; for a sharded policy, all processes must call
    this."""
    whole = hashlib.sha256()
    for name, weight in model.named_parameters():
        if not weight.requires_grad:
            continue
        whole.update(_frame(name, str(weight.dtype), *weight.shape))
        data: Any = whole_weight(weight.detach()).to("cpu").contiguous()
        whole.update(data.flatten().view(torch.uint8).numpy())
    return whole.hexdigest()


def read_steps(file: Path) -> list[StepHash]:
    """Return the hashes of every finished step; empty if the file does not exist.

    An incomplete last line is left out.
    """
    return jsonl.read_records(file, StepHash)


def _bits(value: Any) -> str | None:
    """Return a number as text without losing bits; 1 and 1.0 give the same text."""
    return None if value is None else float(value).hex()


def _frame(*values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode() + b"\n"

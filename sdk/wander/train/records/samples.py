"""What the policy does on the same few examples while it learns: lines of `samples.jsonl`.

Each line is a rollout with its `step`, the steps that the policy had learnt. Example, index and seeds are the
same at every step, so whatever differs between two of them is what the policy learnt. They lie beside
`rollouts.jsonl`, which holds one rollout for each example and index.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wander.evals.store import jsonl
from wander.types import Rollout

SAMPLES = "samples.jsonl"


def read_samples(folder: Path) -> list[Rollout]:
    """Return the samples of a training run, by step."""
    return jsonl.read_records(folder / SAMPLES, Rollout)


def append_samples(folder: Path, rollouts: Iterable[Rollout]) -> None:
    """Add the samples of a step."""
    text = "".join(rollout.model_dump_json() + "\n" for rollout in rollouts)
    with (folder / SAMPLES).open("ab") as file:
        file.write(text.encode("utf-8", "replace"))


def write_samples(folder: Path, rollouts: Iterable[Rollout]) -> None:
    """Write all samples anew, whole or not at all."""
    jsonl.write_records(folder / SAMPLES, rollouts)

"""The sampler's state beside each checkpoint, so that a resumed run plays what it would have played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from wander.evals.store import jsonl
from wander.train.play.mixture import Mixture

SAMPLER = "sampler.json"


class SamplerCheckpoint(TrainerCallback):  # type: ignore[misc]
    """Writes what decides the next examples into every checkpoint, and goes on from what `begun` has.

    `groups` is the number of groups of a step.
    """

    def __init__(self, mixture: Mixture, groups: int, begun: Path | None = None) -> None:
        self.mixture = mixture
        self.groups = groups
        if begun is not None:
            self._restore(begun)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the state into the checkpoint that was just made."""
        if args.process_index == 0:
            file = Path(args.output_dir) / f"checkpoint-{state.global_step}" / SAMPLER
            jsonl.write_whole(file, (json.dumps(self.mixture.state()) + "\n").encode())

    def _restore(self, checkpoint: Path) -> None:
        """Go on from a checkpoint; one without the file was made when examples came in their order only."""
        file = checkpoint / SAMPLER
        if file.is_file():
            self.mixture.restore(json.loads(file.read_bytes()))
            return
        for _ in range(int(checkpoint.name.rpartition("-")[2])):
            self.mixture.draw(self.groups)

"""The mean of the policy's weights over the last steps: what single steps added by chance is averaged out.

Every step moves a policy at random beside what it learns, the more the fewer groups still disagree. The mean
over many steps moves much less. It takes the policy's place after the last step, before anything evaluates or
saves it; a run that ends before keeps the weights that it has. Training itself is not changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from wander.errors import ConfigError
from wander.train.config import GRPOSettings

MEAN = "mean.pt"


def weight_means(settings: GRPOSettings) -> list[WeightMean]:
    """Return the callback that averages, where the settings want it; before all that looks at the policy."""
    steps = settings.algorithm.average_steps
    return [WeightMean(steps)] if steps else []


class WeightMean(TrainerCallback):  # type: ignore[misc]
    """Averages the trained weights over the last `steps` steps; each checkpoint has the mean so far."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.mean: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Go on from the mean of the checkpoint that the run goes on from."""
        if args.world_size > 1:
            raise ConfigError(
                "`algorithm.average_steps` needs a run in one process",
                hint="leave it out, or start one process",
            )
        file = self._file(args, state)
        if self._averaged(state) > 0 and file.is_file():
            self.mean = torch.load(file, weights_only=True)

    @torch.no_grad()
    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Add the weights after this step; after the last one the mean takes their place."""
        count = self._averaged(state)
        if count <= 0:
            return
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        for name, weight in trained.items():
            if count == 1:
                self.mean[name] = weight.detach().to("cpu", torch.float32, copy=True)
            else:
                self.mean[name] += (weight.detach().to("cpu", torch.float32) - self.mean[name]) / count
            if state.global_step == state.max_steps:
                weight.copy_(self.mean[name])

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the mean so far into the checkpoint that was just made."""
        if self.mean:
            torch.save(self.mean, self._file(args, state))

    def _averaged(self, state: Any) -> int:
        """Return how many of the steps done so far are in the mean."""
        return int(state.global_step - max(0, state.max_steps - self.steps))

    def _file(self, args: Any, state: Any) -> Path:
        return Path(args.output_dir) / f"checkpoint-{state.global_step}" / MEAN

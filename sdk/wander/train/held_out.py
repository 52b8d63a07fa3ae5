"""The loss of fine-tuning on conversations that are not learnt: whether the model learns or memorises."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from transformers import TrainerCallback

from wander.seeding import derived_rng
from wander.train.sft import IGNORED
from wander.train.trainer import StepLog

MOST_LOGITS = 1 << 28
"""Numbers that the logits of one batch may have: 1 GiB."""


def held_out_places(prompts: Sequence[str], share: float, seed: int) -> set[int]:
    """Return which rows are held back: about that share, all rows of one prompt together.

    At least one prompt is held back and one is learnt; with a single prompt none is held back.
    """
    distinct = sorted(set(prompts))
    if share <= 0 or len(distinct) < 2:
        return set()
    derived_rng(seed, "held out").shuffle(distinct)
    wanted = max(1, round(share * len(prompts)))
    chosen: set[str] = set()
    count = 0
    for prompt in distinct[:-1]:
        if count >= wanted:
            break
        chosen.add(prompt)
        count += prompts.count(prompt)
    return {place for place, prompt in enumerate(prompts) if prompt in chosen}


class HeldOutLoss(TrainerCallback):  # type: ignore[misc]
    """Measures the mean loss per learnt token before the first step, every `every` steps and at the end.

    `file` gets a line `{"step", "loss"}` each time; the step's own metrics get `held_out/loss`. It draws no
    random number, so training is the same with it and without.
    """

    def __init__(self, dataset: Any, rows: int, every: int, log: StepLog, file: Path) -> None:
        self._dataset = dataset
        self._rows = rows
        self._every = every
        self._log = log
        self._file = file
        self.losses: dict[int, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure before the first step; a resumed run takes what it measured before."""
        if state.global_step and self._file.is_file():
            lines = [json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines()]
            self.losses = {one["step"]: one["loss"] for one in lines if one["step"] <= state.global_step}
        else:
            self._measure(0, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure where it is due; the last step is measured in any case."""
        step = state.global_step
        if step >= state.max_steps or (self._every and step % self._every == 0):
            self._log.note_pause(*self._measure(step, model))

    def _measure(self, step: int, model: Any) -> tuple[float, dict[str, float | None]]:
        started = perf_counter()
        training = model.training
        model.eval()
        try:
            self.losses[step] = mean_loss(model, self._dataset, self._rows)
        finally:
            model.train(training)
        lines = [json.dumps({"step": at, "loss": loss}) + "\n" for at, loss in sorted(self.losses.items())]
        self._file.write_text("".join(lines), encoding="utf-8")
        return perf_counter() - started, {"held_out/loss": self.losses[step]}


@torch.no_grad()
def mean_loss(model: Any, dataset: Any, rows: int) -> float:
    """Return the mean negative log-likelihood of the learnt tokens, `rows` conversations at a time."""
    total, tokens = 0.0, 0
    longest = max((len(ids) for ids in dataset["input_ids"]), default=1)
    rows = max(1, min(rows, MOST_LOGITS // (longest * model.config.get_text_config().vocab_size)))
    for start in range(0, len(dataset), rows):
        batch = dataset[start : start + rows]
        length = max(len(ids) for ids in batch["input_ids"])
        ids, labels, seen = (
            torch.tensor([row + [filling] * (length - len(row)) for row in columns], device=model.device)
            for columns, filling in (
                (batch["input_ids"], 0),
                (batch["labels"], IGNORED),
                ([[1] * len(row) for row in batch["input_ids"]], 0),
            )
        )
        logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, :-1].float()
        following = labels[:, 1:]
        total += float(
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED, reduction="sum"
            )
        )
        tokens += int((following != IGNORED).sum())
    return total / max(1, tokens)

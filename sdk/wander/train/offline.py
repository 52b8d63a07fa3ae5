"""What SFT, DPO and KTO share: a run over rows that are there, with checkpoints that it can go on from.

A row whose run kept the tokens is learnt from these very tokens, where they are of the model's vocabulary:
in it they say what the row says. Otherwise its messages are laid out by the model's chat template. Either way
only the tokens of the assistant count.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from wander.errors import ConfigError, ModelError, RunError
from wander.models.chat import ChatFormat, ChatOptions, Conversation, content_text
from wander.models.loading import LoadedModel
from wander.models.quiet import quiet_libraries
from wander.models.sampling import end_of_turn_ids, find_unknown_end
from wander.train.config import OfflineSettings
from wander.train.records.checkpoints import (
    SEALED,
    SavedCheckpoint,
    checkpoint_to_resume,
    list_checkpoints,
)
from wander.train.records.files import METRICS, write_arguments
from wander.train.records.record import Progress, TrainingRecord
from wander.train.trainer import (
    checkpoint_arguments,
    make_arguments,
    tell_full_disk,
    train_until_interrupted,
)
from wander.train.watch.reporting import open_reporters
from wander.train.weights import save_policy, wrap_lora

CHECKPOINT_STEPS = 200
"""Steps that a kill costs at most, where the settings do not mention checkpoints."""
TEMPLATE_DATE = "template_date.txt"
"""Keeps the date that a model's chat template shows, for a run that is resumed."""
Build = Callable[[Any, dict[str, Any], list[TrainerCallback]], Any]
"""Makes the trainer of a model from the arguments and the callbacks that all have in common."""


@dataclass(frozen=True)
class Learnt:
    """What a run made of a model."""

    model: Path
    steps: int
    interrupted: bool
    entries: Sequence[dict[str, Any]]
    """Lines of `metrics.jsonl`."""

    def first(self, metric: str) -> float:
        """Return a metric of the first step; NaN where no step has it."""
        return next(iter(self._known(metric)), float("nan"))

    def final(self, metric: str) -> float:
        """Return the mean of a metric over the last tenth of the steps; NaN where no step has it."""
        known = self._known(metric)
        tail = known[-max(1, len(known) // 10) :]
        return sum(tail) / len(tail) if tail else float("nan")

    def _known(self, metric: str) -> list[float]:
        return [entry[metric] for entry in self.entries if entry.get(metric) is not None]


def learn(
    loaded: LoadedModel,
    settings: OfflineSettings,
    folder: Path,
    build: Build,
    *,
    progress: Progress | None = None,
    resume: bool = False,
    watch: Callable[[TrainingRecord], Sequence[TrainerCallback]] = lambda record: (),
) -> Learnt:
    """Train with the trainer that `build` makes, and write the model to `folder/model`.

    `resume` goes on from the folder's last checkpoint, if it has one. `watch` gives more callbacks. Raises
    `RunError` for a run that has ended, or a checkpoint that is damaged.
    """
    schedule = settings.schedule
    folder.mkdir(parents=True, exist_ok=True)
    begun = _to_resume(folder) if resume else None
    if begun is None:
        _forget_checkpoints(folder)
    covered = begun.step if begun else 0
    record = TrainingRecord(folder, covered, progress)
    arguments = {
        **make_arguments(settings.model, schedule, settings.logging, folder),
        "max_steps": schedule.steps or -1,
        "num_train_epochs": schedule.epochs,
        "per_device_train_batch_size": settings.batch.rows,
        **checkpoint_arguments(schedule.checkpoint_every, CHECKPOINT_STEPS),
    }
    torch.manual_seed(schedule.seed)  # adapters begin with random numbers
    with (
        tell_full_disk(folder, "--resume"),
        quiet_libraries(),
        open_reporters(settings.logging, folder, covered) as reporters,
    ):
        model = wrap_lora(loaded.model, settings.model)
        trainer = build(model, arguments, [*watch(record), record, *reporters])
        write_arguments(folder, trainer.args)
        interrupted = train_until_interrupted(trainer, record, begun, schedule.stop_grace)
        saved = save_policy(trainer.model, loaded, folder / "model")
    if not interrupted and not schedule.checkpoint_every:
        _forget_checkpoints(folder)
    return Learnt(saved, trainer.state.global_step, interrupted, record.entries)


def name_ends(loaded: LoadedModel) -> None:
    """Have the model end its turns with the token with which its chat template closes them.

    The token is learnt with each turn. Base models often lack it among their ends.
    """
    ends = end_of_turn_ids(loaded.model, loaded.tokenizer)
    token = find_unknown_end(ChatFormat(loaded.tokenizer, ends))
    if token is not None:
        named = loaded.tokenizer.convert_tokens_to_ids(token)
        loaded.model.generation_config.eos_token_id = sorted({*ends, named})


def chat_options(settings: OfflineSettings, loaded: LoadedModel, folder: Path, resume: bool) -> ChatOptions:
    """Return how conversations are written; a resumed run shows the date on which it started."""
    kept, section = folder / TEMPLATE_DATE, settings.model
    day = section.template_date
    if day is None and resume and kept.is_file():
        day = date.fromisoformat(kept.read_text(encoding="utf-8").strip())
    form = ChatFormat(loaded.tokenizer, frozenset(), ChatOptions(day, section.merge_system))
    if form.shows_date:
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(f"{form.date.isoformat()}\n", encoding="utf-8")
    return ChatOptions(form.date, section.merge_system)


def tokens_of(row: Mapping[str, Any], form: ChatFormat) -> tuple[list[Conversation], bool]:
    """Return the sequences in which a row is learnt, and whether they are the tokens that were sampled.

    Raises `ModelError` for messages that the model's chat template does not take.
    """
    kept = [Conversation(ids=list(part["ids"]), mask=list(part["mask"])) for part in row.get("sampled") or ()]
    if kept and _say(kept, form, row["messages"]):
        return kept, True
    return form.transcripts(row["messages"], row.get("tools")), False


def row_error(number: int, error: ModelError) -> ConfigError:
    """Return the error for a row that cannot be laid out."""
    return ConfigError(f"row {number} cannot be learnt: {error}", hint=error.hint)


def _say(sequences: Sequence[Conversation], form: ChatFormat, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether tokens say, in the model's vocabulary, what the messages say."""
    size = len(form.tokenizer)
    if any(token >= size for sequence in sequences for token in sequence.ids):
        return False
    # Each piece by itself, as the turns were read; a special token may have been sampled as any other.
    pieces = [
        [token for token, _ in piece]
        for sequence in sequences
        for _, piece in groupby(zip(sequence.ids, sequence.mask, strict=True), key=lambda pair: pair[1])
    ]
    text = "\n".join(form.decode(piece) for piece in pieces)
    return all(
        content_text(message.get("content") or "").strip() in text
        for message in messages
        if message["role"] in ("user", "assistant")
    )


def _to_resume(folder: Path) -> SavedCheckpoint | None:
    """Return the checkpoint that a run goes on from; None means from its beginning."""
    file = folder / METRICS
    text = file.read_bytes().rstrip() if file.is_file() else b""
    last = json.loads(text.split(b"\n")[-1]) if text else {"step": 0, "steps": 1}
    if last["step"] >= last["steps"] and (folder / "model").is_dir():
        raise RunError(f"the run in `{folder}` has ended: its model is in `{folder / 'model'}`")
    begun = checkpoint_to_resume(folder)
    if begun is not None and begun.step >= last["steps"]:
        # Killed before the model was written: the last steps are made again.
        earlier = [
            checkpoint.step for checkpoint in list_checkpoints(folder) if checkpoint.step < last["steps"]
        ]
        begun = checkpoint_to_resume(folder, max(earlier, default=0))
    return begun


def _forget_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / SEALED).unlink(missing_ok=True)

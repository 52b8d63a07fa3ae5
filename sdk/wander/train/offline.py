"""Common parts of SFT, DPO and KTO: a run over existing rows, with checkpoints to resume from.

If a row contains the tokens that its run sampled, and the model's vocabulary decodes them to the row's
messages, it is learned from exactly these tokens. Otherwise its messages are formatted by the model's chat
template. In both cases only the assistant's tokens are learned.
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
from wander.train.config import LoggingSection, OfflineSettings
from wander.train.distributed import current_world, process_folder
from wander.train.hugging_face_trainer import (
    checkpoint_arguments,
    make_arguments,
    tell_full_disk,
    train_until_interrupted,
)
from wander.train.records.checkpoints import (
    SEALED,
    SavedCheckpoint,
    checkpoint_to_resume,
    list_checkpoints,
)
from wander.train.records.files import METRICS, write_arguments
from wander.train.records.record import Progress, TrainingRecord
from wander.train.watch.reporting import open_reporters
from wander.train.weights import QuantizationNote, save_policy, wrap_lora

CHECKPOINT_STEPS = 200
"""Steps between checkpoints if the settings do not mention them, and so the maximum loss if the run is
killed."""
TEMPLATE_DATE = "template_date.txt"
"""File with the date that a model's chat template shows, for resumed runs."""
Build = Callable[[Any, dict[str, Any], list[TrainerCallback]], Any]
"""Function that creates the trainer of a model from the common arguments and callbacks."""


@dataclass(frozen=True)
class Learned:
    """The result of a run over rows."""

    model: Path
    steps: int
    interrupted: bool
    entries: Sequence[dict[str, Any]]
    """Lines of `metrics.jsonl`."""

    def first(self, metric: str) -> float:
        """Return a metric of the first step that has it; NaN if no step does."""
        return next(iter(self._known(metric)), float("nan"))

    def final(self, metric: str) -> float:
        """Return the mean of a metric over the last tenth of the steps; NaN if no step has it."""
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
) -> Learned:
    """Train with the trainer that `build` creates, and write the model to `folder/model`.

    Several processes share the rows of each step, and the first one writes the folder. `resume` continues
    from the folder's last checkpoint, if there is a checkpoint. `watch` returns additional callbacks. Raises
    `RunError` for a finished run or a damaged checkpoint, and `ConfigError` for rows that the processes
    cannot share evenly.
    """
    schedule, world = settings.schedule, current_world(settings.model.device)
    share, rest = divmod(settings.batch.rows, world.size)
    if rest:
        raise ConfigError(
            f"{settings.batch.rows} rows per step cannot be shared evenly by {world.size} processes",
            hint=f"make `batch.rows` a multiple of {world.size}",
        )
    folder.mkdir(parents=True, exist_ok=True)
    begun = world.from_main(lambda: _to_resume(folder) if resume else None)
    if begun is None and world.is_main:
        _forget_checkpoints(folder)
    covered = begun.step if begun else 0
    arguments = {
        **make_arguments(settings.model, schedule, settings.logging, folder),
        "max_steps": schedule.steps or -1,
        "num_train_epochs": schedule.epochs,
        "per_device_train_batch_size": share,
        "ddp_find_unused_parameters": False,
        "ddp_broadcast_buffers": False,
        **checkpoint_arguments(schedule.checkpoint_every, CHECKPOINT_STEPS),
    }
    torch.manual_seed(schedule.seed)  # adapters start with random numbers
    with (
        tell_full_disk(folder, "--resume"),
        quiet_libraries(),
        process_folder(folder, world) as own,
        open_reporters(settings.logging if world.is_main else LoggingSection(), own, covered) as reporters,
    ):
        record = TrainingRecord(own, covered, progress if world.is_main else None, world)
        model = wrap_lora(loaded.model, settings.model)
        trainer = build(model, arguments, [*watch(record), QuantizationNote(), record, *reporters])
        write_arguments(own, trainer.args)
        interrupted = train_until_interrupted(trainer, record, begun, schedule.stop_grace)
        world.together(lambda: save_policy(trainer.model, loaded, own / "model"))
    if world.is_main and not interrupted and not schedule.checkpoint_every:
        _forget_checkpoints(folder)
    return Learned(folder / "model", trainer.state.global_step, interrupted, record.entries)


def name_ends(loaded: LoadedModel) -> None:
    """Have the model end its turns with the token with which its chat template closes them.

    The token is learned with each turn. Base models often lack it among their ends.
    """
    ends = end_of_turn_ids(loaded.model, loaded.tokenizer)
    token = find_unknown_end(ChatFormat(loaded.tokenizer, ends))
    if token is not None:
        named = loaded.tokenizer.convert_tokens_to_ids(token)
        loaded.model.generation_config.eos_token_id = sorted({*ends, named})


def chat_options(settings: OfflineSettings, loaded: LoadedModel, folder: Path, resume: bool) -> ChatOptions:
    """Return the chat options; a resumed run keeps the date when it started."""
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
    """Return the sequences to learn from a row, and whether they are the sampled tokens.

    Raises `ModelError` for messages that the model's chat template rejects.
    """
    kept = [Conversation(ids=list(part["ids"]), mask=list(part["mask"])) for part in row.get("sampled") or ()]
    if kept and _say(kept, form, row["messages"]):
        return kept, True
    return form.transcripts(row["messages"], row.get("tools")), False


def row_error(number: int, error: ModelError) -> ConfigError:
    """Return the error for a row that cannot be converted to tokens."""
    return ConfigError(f"cannot learn from row {number}: {error}", hint=error.hint)


def _say(sequences: Sequence[Conversation], form: ChatFormat, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether tokens, decoded with the model's vocabulary, contain the text of the messages."""
    size = len(form.tokenizer)
    if any(token >= size for sequence in sequences for token in sequence.ids):
        return False
    # Each piece is decoded separately, as the turns were, because a special token may have been sampled like
    # any other token.
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
    """Return the checkpoint to resume from; None means the beginning of the run."""
    file = folder / METRICS
    text = file.read_bytes().rstrip() if file.is_file() else b""
    last = json.loads(text.split(b"\n")[-1]) if text else {"step": 0, "steps": 1}
    if last["step"] >= last["steps"] and (folder / "model").is_dir():
        raise RunError(f"the run in `{folder}` is already finished: its model is in `{folder / 'model'}`")
    begun = checkpoint_to_resume(folder)
    if begun is not None and begun.step >= last["steps"]:
        # The run was killed before the model was written, so the last steps are repeated.
        earlier = [
            checkpoint.step for checkpoint in list_checkpoints(folder) if checkpoint.step < last["steps"]
        ]
        begun = checkpoint_to_resume(folder, max(earlier, default=0))
    return begun


def _forget_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / SEALED).unlink(missing_ok=True)

"""Supervised fine-tuning on filtered rollouts, with TRL's `SFTTrainer`. Read top to bottom.

Only the model's own tokens are learnt. They are found the way the policy will later see them: each
conversation is tokenised turn by turn by `wander.models.chat`, the same code that GRPO samples with, so any
chat template that only appends works, with or without generation markers, and no template is guessed.

Left out on purpose: packing (conversations of one environment have alike lengths; batches are grouped by
length instead), evaluation during training (that is `wander eval` on the result), several processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from wander.errors import ConfigError, MissingExtra, ModelError
from wander.models.chat import ChatFormat
from wander.models.loading import LoadedModel, load_model
from wander.models.quiet import quiet_libraries
from wander.models.sampling import end_of_turn_ids
from wander.train.config import SFTSettings

Progress = Callable[[dict[str, Any]], None]
"""Called with the metrics of every step; `step` and `steps` are always there."""

IGNORED = -100
"""Label of a token that is not learnt."""


@dataclass(frozen=True)
class SFTResult:
    """What a fine-tuning run made."""

    model: Path
    rows: int
    too_long: int
    """Conversations left out because they exceed `batch.max_length`."""
    steps: int
    interrupted: bool
    first_loss: float
    final_loss: float
    """Mean over the last tenth of the steps."""
    seconds: float


def train_sft(
    rows: Iterable[dict[str, Any]], settings: SFTSettings, folder: Path, *, progress: Progress | None = None
) -> SFTResult:
    """Fine-tune a model on rows with `messages` and write it to `folder/model`.

    Per-step metrics go to `folder/metrics.jsonl`. Raises `ConfigError` when no row is left to learn from.
    """
    try:
        from trl import SFTConfig, SFTTrainer
    except ImportError as error:
        raise MissingExtra("train", needed_for="fine-tuning") from error
    from wander.train.lora import wrap_lora
    from wander.train.trainer import StepLog, train_until_interrupted, training_arguments

    started = perf_counter()
    loaded = load_model(settings.model.path, device=settings.model.device, dtype=settings.model.dtype)
    dataset, too_long = tokenized(rows, loaded, settings.batch.max_length)
    folder.mkdir(parents=True, exist_ok=True)
    schedule = settings.schedule
    log = StepLog(folder / "metrics.jsonl", progress)
    with quiet_libraries():
        trainer = SFTTrainer(
            model=wrap_lora(loaded.model, settings.model),
            processing_class=loaded.tokenizer,
            train_dataset=dataset,
            callbacks=[log],
            args=SFTConfig(
                **training_arguments(settings.model, schedule, folder),
                max_steps=schedule.steps or -1,
                num_train_epochs=schedule.epochs,
                per_device_train_batch_size=settings.batch.rows,
                train_sampling_strategy="group_by_length",
                save_strategy="no",
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
        )
        interrupted = train_until_interrupted(trainer, log)
        saved = save_model(trainer.model, loaded, folder / "model")
    losses = [entry["loss"] for entry in log.entries if entry["loss"] is not None]
    tail = losses[-max(1, len(losses) // 10) :]
    return SFTResult(
        model=saved,
        rows=len(dataset),
        too_long=too_long,
        steps=trainer.state.global_step,
        interrupted=interrupted,
        first_loss=losses[0] if losses else float("nan"),
        final_loss=sum(tail) / len(tail) if tail else float("nan"),
        seconds=perf_counter() - started,
    )


def tokenized(rows: Iterable[dict[str, Any]], loaded: LoadedModel, max_length: int) -> tuple[Any, int]:
    """Return the rows as a dataset of `input_ids` and `labels`, and how many were too long."""
    from datasets import Dataset

    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": [], "length": []}
    too_long = 0
    for number, row in enumerate(rows, start=1):
        try:
            conversations = form.transcripts(row["messages"])
        except ModelError as error:
            raise ConfigError(f"row {number} cannot be learnt: {error}", hint=error.hint) from error
        for conversation in conversations:
            if len(conversation.ids) > max_length:
                too_long += 1
                continue
            pairs = zip(conversation.ids, conversation.mask, strict=True)
            columns["input_ids"].append(conversation.ids)
            columns["labels"].append([token if own else IGNORED for token, own in pairs])
            columns["length"].append(len(conversation.ids))
    if not columns["input_ids"]:
        raise ConfigError(
            f"no row is left to learn from ({too_long} exceed {max_length} tokens)",
            hint="filter less in `wander data`, or raise `batch.max_length`",
        )
    return Dataset.from_dict(columns), too_long


def save_model(model: Any, loaded: LoadedModel, folder: Path) -> Path:
    """Write the model, adapters merged, with its tokenizer in Hugging Face form; whole or not at all."""
    from wander.train.trainer import replaced_folder

    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    with replaced_folder(folder) as made:
        model.save_pretrained(made)
        loaded.tokenizer.save_pretrained(made)
    return folder

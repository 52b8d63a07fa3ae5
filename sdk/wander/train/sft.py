"""Supervised fine-tuning on filtered rollouts, with TRL's `SFTTrainer`. Read top to bottom.

Only the model's own tokens are learnt. They are found the way the policy will later see them: each
conversation is tokenised turn by turn by `wander.models.chat`, the same code that GRPO samples with, so any
chat template that only appends works, with or without generation markers, and no template is guessed. One
that rewrites history gives a sample for every turn. Rows with `tools` are rendered with them.

A run that was stopped goes on from its last checkpoint (`resume`), on a CPU to the same bits.

Left out on purpose: packing (conversations of one environment have alike lengths; batches are grouped by
length instead), evaluation by rollouts (that is `wander eval` on the result), several processes.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from wander.errors import ConfigError, MissingExtra, ModelError, RunError
from wander.models.chat import ChatFormat
from wander.models.loading import LoadedModel, load_model
from wander.models.quiet import quiet_libraries
from wander.models.sampling import end_of_turn_ids
from wander.train.config import SFTSettings

if TYPE_CHECKING:
    from wander.train.records.checkpoints import SavedCheckpoint
    from wander.train.trainer import StepLog
    from wander.train.watch.observing import TrackerCallback

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
    held_out: int = 0
    """Conversations that were held back (`schedule.eval_share`), and not learnt."""
    held_out_first: float | None = None
    """Loss on them before the first step."""
    held_out_final: float | None = None
    """Loss on them when it was last measured."""


def train_sft(
    rows: Iterable[dict[str, Any]],
    settings: SFTSettings,
    folder: Path,
    *,
    progress: Progress | None = None,
    resume: bool = False,
) -> SFTResult:
    """Fine-tune a model on rows with `messages` and write it to `folder/model`.

    Per-step metrics go to `folder/metrics.jsonl`. `resume` goes on from the folder's last checkpoint, if it
    has one; the rows and settings must be the same. Raises `ConfigError` when no row is left to learn from,
    and `RunError` for a run that has ended, or a checkpoint that is damaged.
    """
    try:
        from trl import SFTConfig, SFTTrainer
    except ImportError as error:
        raise MissingExtra("train", needed_for="fine-tuning") from error
    from wander.train.held_out import HeldOutLoss
    from wander.train.lora import wrap_lora
    from wander.train.trainer import StepLog, train_until_interrupted, training_arguments
    from wander.train.watch.trackers import require_trackers

    started = perf_counter()
    require_trackers(settings.logging.trackers)
    loaded = load_model(settings.model.path, device=settings.model.device, dtype=settings.model.dtype)
    dataset, too_long = tokenized(rows, loaded, settings.batch.max_length)
    schedule = settings.schedule
    learnt, held_out = split(dataset, schedule.eval_share, schedule.seed)
    folder.mkdir(parents=True, exist_ok=True)
    begun = _to_resume(folder) if resume else None
    if begun is None:
        _forget_checkpoints(folder)
    log = StepLog(folder / "metrics.jsonl", progress, keep=None if begun is None else begun.path)
    callbacks: list[Any] = [log, _seals(folder)]
    watched = HeldOutLoss(held_out, settings.batch.rows, schedule.eval_every, log, folder / "held_out.jsonl")
    if len(held_out):
        callbacks.append(watched)
    callbacks.append(tracking := _trackers(settings, folder, log))
    with quiet_libraries(), contextlib.closing(tracking):
        trainer = by_length(SFTTrainer, list(learnt["length"]))(
            model=wrap_lora(loaded.model, settings.model),
            processing_class=loaded.tokenizer,
            train_dataset=learnt,
            callbacks=callbacks,
            args=SFTConfig(
                **training_arguments(settings.model, schedule, folder),
                max_steps=schedule.steps or -1,
                num_train_epochs=schedule.epochs,
                per_device_train_batch_size=settings.batch.rows,
                save_strategy="steps" if schedule.checkpoint_every else "no",
                save_steps=schedule.checkpoint_every or 1,
                save_total_limit=2,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
        )
        interrupted = train_until_interrupted(trainer, log, None if begun is None else begun.path)
        saved = save_model(trainer.model, loaded, folder / "model")
    if not interrupted and not schedule.checkpoint_every:
        _forget_checkpoints(folder)
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
        held_out=len(held_out),
        held_out_first=watched.losses.get(0),
        held_out_final=watched.losses[max(watched.losses)] if watched.losses else None,
    )


def _trackers(settings: SFTSettings, folder: Path, log: StepLog) -> TrackerCallback:
    """Return what passes the steps on to trackers; one that breaks leaves an alert."""
    from wander.train.watch.alerts import write_alerts
    from wander.train.watch.observing import TrackerCallback

    config = settings.model_dump(mode="json")
    return TrackerCallback(settings.logging, config, folder, log, lambda alert: write_alerts(folder, [alert]))


def _to_resume(folder: Path) -> SavedCheckpoint | None:
    """Return the checkpoint that a run goes on from; None means from its beginning."""
    from wander.train.records.checkpoints import checkpoint_to_resume, saved_checkpoints

    file = folder / "metrics.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    last = json.loads(lines[-1]) if lines else {"step": 0, "steps": 1}
    if last["step"] >= last["steps"] and (folder / "model").is_dir():
        raise RunError(f"the run in `{folder}` has ended: its model is in `{folder / 'model'}`")
    begun = checkpoint_to_resume(folder)
    if begun is not None and begun.step >= last["steps"]:
        # Killed before the model was written: the last steps are made again.
        earlier = [one.step for one in saved_checkpoints(folder) if one.step < last["steps"]]
        begun = checkpoint_to_resume(folder, max(earlier, default=0))
    return begun


def by_length(trainer: Any, lengths: list[int]) -> Any:
    """Return the trainer's class with an order of its conversations that a resumed run takes up."""
    from wander.train.length_order import LengthOrder

    class ByLength(trainer):  # type: ignore[misc]
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return LengthOrder(lengths, self.args.per_device_train_batch_size, self.args.seed)

    return ByLength


def split(dataset: Any, share: float, seed: int) -> tuple[Any, Any]:
    """Return what is learnt and what is held back, all conversations of one prompt on one side."""
    from wander.train.held_out import held_out_places

    prompts = [
        str(ids[: _first_learnt(labels)])
        for ids, labels in zip(dataset["input_ids"], dataset["labels"], strict=True)
    ]
    back = held_out_places(prompts, share, seed)
    if share > 0 and not back:
        raise ConfigError(
            "all rows have the same prompt: none can be held back", hint="leave `schedule.eval_share` out"
        )
    places = range(len(dataset))
    return dataset.select([p for p in places if p not in back]), dataset.select(sorted(back))


def _first_learnt(labels: list[int]) -> int:
    return next((place for place, label in enumerate(labels) if label != IGNORED), len(labels))


def _seals(folder: Path) -> Any:
    """Return a callback that seals every checkpoint once it is written."""
    from transformers import TrainerCallback

    from wander.train.records.checkpoints import seal_checkpoint

    class Seals(TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seal_checkpoint(folder, state.global_step, 0)

    return Seals()


def _forget_checkpoints(folder: Path) -> None:
    from wander.train.records.checkpoints import SEALED

    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / SEALED).unlink(missing_ok=True)


def tokenized(rows: Iterable[dict[str, Any]], loaded: LoadedModel, max_length: int) -> tuple[Any, int]:
    """Return the rows as a dataset of `input_ids` and `labels`, and how many were too long."""
    from datasets import Dataset

    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer))
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": [], "length": []}
    too_long = 0
    for number, row in enumerate(rows, start=1):
        try:
            conversations = form.transcripts(row["messages"], row.get("tools"))
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

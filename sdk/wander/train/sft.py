"""Supervised fine-tuning on filtered rollouts, with TRL's `SFTTrainer`. Read top to bottom.

Only the model's own tokens are learnt. What a policy of the same vocabulary sampled is learnt as it was
sampled, token by token (`wander.train.offline`). All else is found the way the policy will later see it: each
conversation is tokenised turn by turn by `wander.models.chat`, the same code that GRPO samples with, so any
chat template that only appends works, with or without generation markers, and no template is guessed. One
that rewrites history gives a sample for every turn. Rows with `tools` are rendered with them.

Some conversations can be held back: the loss on them tells whether the model learns or memorises. A run that
was stopped goes on from its last checkpoint (`resume`), on a CPU to the same bits.

Left out on purpose: packing (conversations of one environment have alike lengths; batches are grouped by
length instead), evaluation by rollouts (that is `wander eval` on the result), several processes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from wander.errors import ConfigError, ModelError, require_extra

with require_extra("train", needed_for="fine-tuning"):
    import torch
    from datasets import Dataset
    from torch.utils.data import Sampler
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

from wander.models.chat import ChatFormat, ChatOptions
from wander.models.loading import LoadedModel
from wander.models.sampling import end_of_turn_ids
from wander.seeding import derived_rng
from wander.train.config import SFTSettings
from wander.train.libraries import hand_on
from wander.train.offline import chat_options, learn, name_ends, row_error, tokens_of
from wander.train.records.record import Progress, TrainingRecord
from wander.train.watch.reporting import require_trackers
from wander.train.weights import load_learner

IGNORED = -100
"""Label of a token that is not learnt."""

MOST_LOGITS = 1 << 28
"""Numbers that the logits of one batch of held-out conversations may have: 1 GiB."""

SORTED_BATCHES = 50
"""Batches' worth of conversations that are sorted by length together: less padding, and still much chance."""


@dataclass(frozen=True)
class SFTResult:
    """What a fine-tuning run made."""

    model: Path
    rows: int
    """Conversations, each in as many sequences as it was sampled in."""
    too_long: int
    """Conversations of which a sequence was left out, because it exceeds `batch.max_length`."""
    steps: int
    interrupted: bool
    first_loss: float
    final_loss: float
    """Mean over the last tenth of the steps."""
    seconds: float
    as_sampled: int = 0
    """Conversations learnt from the very tokens that were sampled, not laid out by the chat template."""
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
    started = perf_counter()
    require_trackers(settings.logging.trackers)
    loaded = load_learner(settings.model)
    name_ends(loaded)
    options = chat_options(settings, loaded, folder, resume)
    dataset, too_long = tokenize_rows(rows, loaded, settings.batch.max_length, options)
    schedule = settings.schedule
    learnt, held_out = split(dataset, schedule.eval_share, schedule.seed)
    watched: list[HeldOutLoss] = []

    def watch(record: TrainingRecord) -> Sequence[TrainerCallback]:
        if len(held_out):
            file = folder / "held_out.jsonl"
            watched.append(HeldOutLoss(held_out, settings.batch.rows, schedule.eval_every, record, file))
        return watched

    def build(model: Any, arguments: dict[str, Any], callbacks: list[TrainerCallback]) -> SFTTrainer:
        return LengthSortedTrainer(
            model=model,
            processing_class=loaded.tokenizer,
            train_dataset=learnt,
            callbacks=callbacks,
            args=hand_on(
                SFTConfig,
                {**arguments, "dataset_kwargs": {"skip_prepare_dataset": True}},
                settings.trl,
                "trl",
            ),
        )

    run = learn(loaded, settings, folder, build, progress=progress, resume=resume, watch=watch)
    losses = watched[0].losses if watched else {}
    return SFTResult(
        model=run.model,
        rows=len(set(dataset["row"])),
        too_long=too_long,
        as_sampled=len(set(itertools.compress(dataset["row"], dataset["as_sampled"]))),
        steps=run.steps,
        interrupted=run.interrupted,
        first_loss=run.first("loss"),
        final_loss=run.final("loss"),
        seconds=perf_counter() - started,
        held_out=len(set(held_out["row"])),
        held_out_first=losses.get(0),
        held_out_final=losses[max(losses)] if losses else None,
    )


def tokenize_rows(
    rows: Iterable[dict[str, Any]],
    loaded: LoadedModel,
    max_length: int,
    options: ChatOptions | None = None,
) -> tuple[Any, int]:
    """Return the sequences of all rows as a dataset of `input_ids` and `labels`, with the number of the `row`
    of each; and of how many rows one was too long.
    """
    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer), options)
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": [], "length": [], "as_sampled": [], "row": []}
    too_long: set[int] = set()
    for number, row in enumerate(rows, start=1):
        try:
            conversations, sampled = tokens_of(row, form)
        except ModelError as error:
            raise row_error(number, error) from error
        for conversation in conversations:
            if len(conversation.ids) > max_length:
                too_long.add(number)
                continue
            pairs = zip(conversation.ids, conversation.mask, strict=True)
            columns["input_ids"].append(conversation.ids)
            columns["labels"].append([token if own else IGNORED for token, own in pairs])
            columns["length"].append(len(conversation.ids))
            columns["as_sampled"].append(sampled)
            columns["row"].append(number)
    if not columns["input_ids"]:
        raise ConfigError(
            f"no row is left to learn from ({len(too_long)} exceed {max_length} tokens)",
            hint="filter less in `wander runs data`, or raise `batch.max_length`",
        )
    return Dataset.from_dict(columns), len(too_long)


class LengthSortedTrainer(SFTTrainer):  # type: ignore[misc]
    """TRL's trainer with an order of its conversations that a resumed run takes up."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        lengths = list(self.train_dataset["length"])
        return LengthOrder(lengths, self.args.per_device_train_batch_size, self.args.seed)


class LengthOrder(Sampler[int]):
    """Yields places so that each batch has alike lengths.

    The order depends on the seed and the epoch alone, so a run that goes on within an epoch finds the same.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self._lengths = lengths
        self._batch = batch
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Learn which epoch comes."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = derived_rng(self._seed, "order of conversations", self._epoch)
        places = list(range(len(self)))
        rng.shuffle(places)
        pool = SORTED_BATCHES * self._batch
        ordered: list[int] = []
        for start in range(0, len(places), pool):
            ordered += sorted(places[start : start + pool], key=lambda place: -self._lengths[place])
        batches = [ordered[start : start + self._batch] for start in range(0, len(ordered), self._batch)]
        # One that is not full stays the last: else it would shift all that follow.
        rest = [batches.pop()] if batches and len(batches[-1]) < self._batch else []
        rng.shuffle(batches)
        return iter([place for batch in [*batches, *rest] for place in batch])


def split(dataset: Any, share: float, seed: int) -> tuple[Any, Any]:
    """Return what is learnt and what is held back: about that share, all conversations of a prompt together.

    So all sequences of a conversation are, too: later ones repeat what earlier ones are about to learn. At
    least one prompt is held back and one is learnt; raises `ConfigError` where there is a single one.
    """
    prompt_of: dict[int, str] = {}
    for row, ids, labels in zip(dataset["row"], dataset["input_ids"], dataset["labels"], strict=True):
        first_learnt = next((at for at, label in enumerate(labels) if label != IGNORED), len(labels))
        prompt_of.setdefault(row, str(ids[:first_learnt]))
    prompts = list(prompt_of.values())
    distinct = sorted(set(prompts)) if share > 0 else []
    if len(distinct) == 1:
        raise ConfigError(
            "all rows have the same prompt: none can be held back", hint="leave `schedule.eval_share` out"
        )
    derived_rng(seed, "held out").shuffle(distinct)
    wanted = max(1, round(share * len(prompts)))
    back: set[str] = set()
    count = 0
    for prompt in distinct[:-1]:
        if count >= wanted:
            break
        back.add(prompt)
        count += prompts.count(prompt)
    sides: tuple[list[int], list[int]] = ([], [])
    for place, row in enumerate(dataset["row"]):
        sides[prompt_of[row] in back].append(place)
    return dataset.select(sides[0]), dataset.select(sides[1])


class HeldOutLoss(TrainerCallback):  # type: ignore[misc]
    """Measures the mean loss per learnt token before the first step, every `every` steps and at the end.

    `file` gets a line `{"step", "loss"}` each time; the step's own metrics get `held_out/loss`. It draws no
    random number, so training is the same with it and without.
    """

    def __init__(self, dataset: Any, rows: int, every: int, record: TrainingRecord, file: Path) -> None:
        self._dataset = dataset
        self._rows = rows
        self._every = every
        self._record = record
        self._file = file
        self.losses: dict[int, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure before the first step; a resumed run takes what it measured before."""
        if state.global_step and self._file.is_file():
            lines = map(json.loads, self._file.read_bytes().rstrip().split(b"\n"))
            self.losses = {line["step"]: line["loss"] for line in lines if line["step"] <= state.global_step}
        else:
            self._measure(0, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure where it is due; the last step is measured in any case."""
        step = state.global_step
        if step >= state.max_steps or (self._every and step % self._every == 0):
            self._record.note_pause(*self._measure(step, model))

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

"""Supervised fine-tuning on filtered rollouts, with TRL's `SFTTrainer`. Read from top to bottom.

Only the model's own tokens are learned. Rollouts by a policy with the same vocabulary are learned exactly as
they were sampled, token by token (`wander.train.offline`). Other conversations are tokenized turn by turn by
`wander.models.chat`, the same code that GRPO samples with, so the policy later sees them in the same form.
This works for any chat template that only appends, with or without generation markers. A template that
rewrites history gives a sample for every turn. Rows with `tools` are rendered with them.

Some conversations can be held out. The loss on them shows whether the model learns or memorizes. A stopped
run continues from its last checkpoint (`resume`), with the same bits on a CPU.

Several processes may share the rows of each step (`wander.train.distributed`). They learn what one process
learns, except for the order in which gradients are summed: the loss of a step is the mean over the learned
tokens of all its rows.

Two things are left out on purpose: packing (conversations of an environment have similar lengths, and batches
are grouped by length instead), and evaluation by rollouts (use `wander eval` on the result).
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
    from datasets import Dataset, concatenate_datasets
    from torch.utils.data import Sampler
    from transformers import TrainerCallback
    from trl import SFTConfig

from wander.models.chat import ChatFormat, ChatOptions
from wander.models.loading import LoadedModel
from wander.models.sampling import end_of_turn_ids
from wander.seeding import derived_rng
from wander.train.config import SFTSettings
from wander.train.distributed import World, current_world
from wander.train.internals import SFTInternals
from wander.train.offline import chat_options, learn, name_ends, row_error, tokens_of
from wander.train.records.record import Progress, TrainingRecord
from wander.train.settings.library_arguments import build_library_config
from wander.train.watch.reporting import require_trackers
from wander.train.weights import load_learner

IGNORED = -100
"""Label of a token that is not learned."""

FILLER = -1
"""Length of a sequence without learned tokens, which only makes a step complete."""

MOST_LOGITS = 1 << 28
"""Maximum number of logits in a batch of held-out conversations: 1 GiB."""

SORTED_BATCHES = 50
"""Number of batches whose conversations are sorted by length together. This reduces padding but keeps most of
the randomness."""


@dataclass(frozen=True)
class SFTResult:
    """The result of a fine-tuning run."""

    model: Path
    rows: int
    """Number of conversations; each may consist of several sequences."""
    too_long: int
    """Number of conversations with a sequence that was left out because it exceeds `batch.max_length`."""
    steps: int
    interrupted: bool
    first_loss: float
    final_loss: float
    """Mean loss over the last tenth of the steps."""
    seconds: float
    as_sampled: int = 0
    """Number of conversations that were learned from their sampled tokens, instead of being formatted by the
    chat template."""
    held_out: int = 0
    """Number of conversations that were held out (`schedule.eval_share`) and not learned."""
    held_out_first: float | None = None
    """Loss on the held-out conversations before the first step."""
    held_out_final: float | None = None
    """Loss on the held-out conversations at the last measurement."""


def train_sft(
    rows: Iterable[dict[str, Any]],
    settings: SFTSettings,
    folder: Path,
    *,
    progress: Progress | None = None,
    resume: bool = False,
) -> SFTResult:
    """Fine-tune a model on rows with `messages` and write it to `folder/model`.

    Metrics of each step are written to `folder/metrics.jsonl`. `resume` continues from the folder's last
    checkpoint, if there is a checkpoint; rows and settings must be the same. Raises `ConfigError` if no row
    can be learned from, and `RunError` for a finished run or a damaged checkpoint.
    """
    started = perf_counter()
    require_trackers(settings.logging.trackers)
    world, schedule = current_world(settings.model.device), settings.schedule
    loaded = world.together(lambda: load_learner(settings.model))
    name_ends(loaded)
    options = world.from_main(lambda: chat_options(settings, loaded, folder, resume))
    dataset, too_long = world.together(
        lambda: tokenize_rows(rows, loaded, settings.batch.max_length, options)
    )
    learned, held_out = split(dataset, schedule.eval_share, schedule.seed)
    watched: list[HeldOutLoss] = []

    def watch(record: TrainingRecord) -> Sequence[TrainerCallback]:
        if len(held_out):
            file = record.path / "held_out.jsonl"
            watched.append(
                HeldOutLoss(held_out, settings.batch.rows, schedule.eval_every, record, file, world)
            )
        return watched

    def build(model: Any, arguments: dict[str, Any], callbacks: list[TrainerCallback]) -> LengthSortedTrainer:
        return LengthSortedTrainer(
            model=model,
            processing_class=loaded.tokenizer,
            train_dataset=learned if world.size == 1 else fill_last_step(learned, settings.batch.rows),
            callbacks=callbacks,
            args=build_library_config(
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
    """Return the sequences of all rows, and the number of rows with a sequence that is too long.

    The sequences are a dataset of `input_ids` and `labels`, with the number of each sequence's `row`.
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
            hint="use fewer filters in `wander runs data`, or raise `batch.max_length`",
        )
    return Dataset.from_dict(columns), len(too_long)


class LengthSortedTrainer(SFTInternals):
    """TRL's trainer with an order of conversations that a resumed run can continue."""

    def order(self) -> LengthOrder:
        """Return an order in which each step has rows of similar lengths."""
        lengths = list(self.train_dataset["length"])
        rows = self.args.per_device_train_batch_size * self.args.world_size
        return LengthOrder(lengths, rows, self.args.seed)


class LengthOrder(Sampler[int]):
    """Yields indexes in an order that gives each batch similar lengths.

    The order depends only on the seed and the epoch, so a run that resumes within an epoch uses the same
    order. Fillers come last.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self._lengths = lengths
        self._batch = batch
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        rng = derived_rng(self._seed, "order of conversations", self._epoch)
        places = [place for place, length in enumerate(self._lengths) if length != FILLER]
        fillers = range(len(places), len(self))
        rng.shuffle(places)
        pool = SORTED_BATCHES * self._batch
        ordered: list[int] = []
        for start in range(0, len(places), pool):
            ordered += sorted(places[start : start + pool], key=lambda place: -self._lengths[place])
        batches = [ordered[start : start + self._batch] for start in range(0, len(ordered), self._batch)]
        # An incomplete batch stays at the end, because it would otherwise shift all batches after it.
        rest = [batches.pop()] if batches and len(batches[-1]) < self._batch else []
        rng.shuffle(batches)
        return iter([*(place for batch in [*batches, *rest] for place in batch), *fillers])


def fill_last_step(dataset: Any, rows: int) -> Any:
    """Return the sequences with fillers at the end, so that every step has exactly `rows` of them.

    Nothing is learned from a filler. Without fillers, accelerate would repeat the first sequences of an epoch
    at its end.
    """
    missing = -len(dataset) % rows
    start = dataset[0]["input_ids"][:2]
    filler = {
        "input_ids": start,
        "labels": [IGNORED] * len(start),
        "length": FILLER,
        "as_sampled": False,
        "row": 0,
    }
    return concatenate_datasets(
        [dataset, Dataset.from_list([filler] * missing, features=dataset.features)] if missing else [dataset]
    )


def split(dataset: Any, share: float, seed: int) -> tuple[Any, Any]:
    """Return the sequences to learn and those to hold out, which are about `share` of the conversations.

    All conversations with the same prompt stay together. So do the sequences of a conversation, because later
    sequences repeat the text of earlier ones. At least one prompt is held out and one is learned; raises
    `ConfigError` if there is only a single prompt.
    """
    prompt_of: dict[int, str] = {}
    for row, ids, labels in zip(dataset["row"], dataset["input_ids"], dataset["labels"], strict=True):
        first_learned = next((at for at, label in enumerate(labels) if label != IGNORED), len(labels))
        prompt_of.setdefault(row, str(ids[:first_learned]))
    prompts = list(prompt_of.values())
    distinct = sorted(set(prompts)) if share > 0 else []
    if len(distinct) == 1:
        raise ConfigError(
            "all rows have the same prompt, so none can be held out", hint="leave out `schedule.eval_share`"
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
    """Measures the mean loss per learned token before the first step, every `every` steps and at the end.

    Each measurement adds a line `{"step", "loss"}` to `file`, and `held_out/loss` to the metrics of the step.
    It draws no random numbers, so it does not influence the training. Each process measures its share.
    """

    def __init__(
        self, dataset: Any, rows: int, every: int, record: TrainingRecord, file: Path, world: World
    ) -> None:
        self._world = world
        self._dataset = dataset.select(range(world.rank, len(dataset), world.size))
        self._rows = rows
        self._every = every
        self._record = record
        self._file = file
        self.losses: dict[int, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure before the first step; a resumed run reads its earlier measurements instead."""
        if state.global_step and self._file.is_file():
            lines = map(json.loads, self._file.read_bytes().rstrip().split(b"\n"))
            self.losses = {line["step"]: line["loss"] for line in lines if line["step"] <= state.global_step}
        else:
            self._measure(0, model)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Measure if it is due; the last step is always measured."""
        step = state.global_step
        if step >= state.max_steps or (self._every and step % self._every == 0):
            self._record.note_pause(*self._measure(step, model))

    def _measure(self, step: int, model: Any) -> tuple[float, dict[str, float | None]]:
        started = perf_counter()
        training = model.training
        model.eval()
        try:
            shares = self._world.exchange([sum_losses(model, self._dataset, self._rows)])
            total, tokens = map(sum, zip(*shares, strict=True))
            self.losses[step] = total / max(1, tokens)
        finally:
            model.train(training)
        lines = [json.dumps({"step": at, "loss": loss}) + "\n" for at, loss in sorted(self.losses.items())]
        self._file.write_text("".join(lines), encoding="utf-8")
        return perf_counter() - started, {"held_out/loss": self.losses[step]}


@torch.no_grad()
def sum_losses(model: Any, dataset: Any, rows: int) -> tuple[float, int]:
    """Return the sum of the negative log-likelihood of the learned tokens, and the number of these tokens.

    `rows` conversations are computed at a time.
    """
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
    return total, tokens

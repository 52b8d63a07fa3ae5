"""DPO and KTO on better and worse rollouts of the same example, with TRL's trainers. Read top to bottom.

TRL lays texts out by the chat template and scores every token after the prompt. Here a rollout is the tokens
that were sampled, and only they are scored: what the environment wrote in between is context. So the rows
come prepared, and the batches carry our masks.

The reference is the policy as it begins. What it gives to each row is computed once, before the first step,
so that no second model is held.

Left out on purpose: rollouts in several sequences (a template that rewrites history) make no pair, as TRL
scores one sequence a side; several processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from wander.errors import ConfigError, ModelError, require_extra

with require_extra("train", needed_for="learning from preferences"):
    import torch
    from datasets import Dataset
    from torch.nn.utils.rnn import pad_sequence
    from transformers import TrainerCallback
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

from wander.models.chat import ChatFormat, ChatOptions
from wander.models.loading import LoadedModel
from wander.models.sampling import end_of_turn_ids
from wander.seeding import derived_rng
from wander.train.config import DPOSection, DPOSettings, KTOSection, PreferenceSettings
from wander.train.libraries import hand_on
from wander.train.offline import chat_options, learn, name_ends, row_error, tokens_of
from wander.train.records.record import Progress
from wander.train.rollouts.sampler import has_signal
from wander.train.watch.reporting import require_trackers
from wander.train.weights import load_learner, turn_off_dropout

ENOUGH = 2
"""Rollouts of one example that can be compared."""


@dataclass(frozen=True)
class PreferenceResult:
    """What a run of DPO or KTO made."""

    model: Path
    rows: int
    """Pairs (DPO) or rollouts (KTO) that were learnt from."""
    left_out: dict[str, int]
    """Rollouts that were not, by reason."""
    as_sampled: int
    """Rollouts that came with the very tokens that were sampled; the others were laid out by the template."""
    steps: int
    interrupted: bool
    first_loss: float
    final_loss: float
    """Mean over the last tenth of the steps."""
    final_margin: float
    """By how much the policy came to prefer the good rollouts, times beta: mean over the last tenth."""
    seconds: float


@dataclass(frozen=True)
class Candidate:
    """A rollout that may be preferred, or not."""

    reward: float
    prompt: list[int]
    """Ids before the first that the policy sampled."""
    completion: list[int]
    mask: list[int]
    """1 for a token of the policy; as long as `completion`."""


@dataclass
class Candidates:
    """The rollouts of a run's rows, those of one example and prompt together."""

    groups: dict[tuple[str, tuple[int, ...]], list[Candidate]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    as_sampled: int = 0


def train_preference(
    rows: Iterable[dict[str, Any]],
    settings: PreferenceSettings,
    folder: Path,
    *,
    progress: Progress | None = None,
    resume: bool = False,
) -> PreferenceResult:
    """Improve a model by DPO or KTO on rows of `select_rows`, and write it to `folder/model`.

    Per-step metrics go to `folder/metrics.jsonl`. `resume` goes on from the folder's last checkpoint, if it
    has one; the rows and settings must be the same. Raises `ConfigError` when nothing is left to learn from,
    and `RunError` for a run that has ended, or a checkpoint that is damaged.
    """
    started = perf_counter()
    require_trackers(settings.logging.trackers)
    loaded = load_learner(settings.model)
    turn_off_dropout(loaded.model)
    name_ends(loaded)
    options = chat_options(settings, loaded, folder, resume)
    candidates = collect_candidates(rows, loaded, settings.batch.max_length, options)
    groups = list(candidates.groups.values())
    if isinstance(settings, DPOSettings):
        table = _table_of_pairs(groups, settings.preference, candidates.left_out)
    else:
        table = _table_of_verdicts(groups, settings.preference, candidates.left_out)
    table = _in_batches(table, settings)

    def build(model: Any, arguments: dict[str, Any], callbacks: list[TrainerCallback]) -> Any:
        tokenizer, section = loaded.tokenizer, settings.preference
        given = {"model": model, "processing_class": tokenizer, "callbacks": callbacks}
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        arguments |= {
            "beta": section.beta,
            "loss_type": section.loss,
            "max_length": None,
            "precompute_ref_log_probs": True,
            "remove_unused_columns": False,
            "train_sampling_strategy": "sequential",
        }
        more = settings.trl
        if isinstance(section, DPOSection):
            trainer: Any = _pair_trainer(section, table, arguments, more, pad, given)
        else:
            trainer = _verdict_trainer(section, table, arguments, more, pad, given)
        if "ref" in getattr(trainer.model, "peft_config", {}):
            # TRL's copy of the first adapters has given its log-probabilities; a checkpoint would keep it.
            trainer.model.delete_adapter("ref")
        return trainer

    run = learn(loaded, settings, folder, build, progress=progress, resume=resume)
    return PreferenceResult(
        model=run.model,
        rows=len(table),
        left_out=dict(+candidates.left_out),
        as_sampled=candidates.as_sampled,
        steps=run.steps,
        interrupted=run.interrupted,
        first_loss=run.first("loss"),
        final_loss=run.final("loss"),
        final_margin=run.final("rewards/margins"),
        seconds=perf_counter() - started,
    )


def collect_candidates(
    rows: Iterable[dict[str, Any]],
    loaded: LoadedModel,
    max_length: int,
    options: ChatOptions | None = None,
) -> Candidates:
    """Return the rollouts that can be compared, by example; what is left out is counted."""
    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer), options)
    candidates = Candidates()
    for number, row in enumerate(rows, start=1):
        if row.get("reward") is None or row.get("example_id") is None:
            raise ConfigError(
                f"row {number} has no `reward` and `example_id`, so it can be compared with none",
                hint="make the rows with `wander runs data RUN --out rows.jsonl`",
            )
        try:
            sequences, sampled = tokens_of(row, form)
        except ModelError as error:
            raise row_error(number, error) from error
        if len(sequences) != 1:
            candidates.left_out["in several sequences"] += 1
            continue
        (sequence,) = sequences
        if len(sequence.ids) > max_length:
            candidates.left_out[f"longer than {max_length} tokens"] += 1
            continue
        begun = sequence.mask.index(1)
        candidate = Candidate(
            float(row["reward"]), sequence.ids[:begun], sequence.ids[begun:], sequence.mask[begun:]
        )
        candidates.as_sampled += sampled
        candidates.groups.setdefault((str(row["example_id"]), tuple(candidate.prompt)), []).append(candidate)
    return candidates


def _table_of_pairs(
    groups: Sequence[Sequence[Candidate]], section: DPOSection, left_out: Counter[str]
) -> list[dict[str, Any]]:
    """Return the best of each group beside the worst, the next best beside the next worst, as asked."""
    table = []
    for group in groups:
        # Of equal ones the first stays the first.
        ordered = sorted(group, key=lambda candidate: -candidate.reward)
        pairs = list(zip(ordered, reversed(ordered), strict=True))[
            : min(section.pairs_per_example, len(group) // 2)
        ]
        taken = [(best, worst) for best, worst in pairs if best.reward - worst.reward > section.min_gap]
        table += [
            {
                "prompt_ids": best.prompt,
                "chosen_ids": best.completion,
                "chosen_mask": best.mask,
                "rejected_ids": worst.completion,
                "rejected_mask": worst.mask,
            }
            for best, worst in taken
        ]
        left_out["alone with its example"] += len(group) < ENOUGH
        left_out["no better and no worse than another"] += 2 * (len(pairs) - len(taken))
    return table


def _table_of_verdicts(
    groups: Sequence[Sequence[Candidate]], section: KTOSection, left_out: Counter[str]
) -> list[dict[str, Any]]:
    """Return the rollouts that are good and those that are bad."""
    table = []
    for group in groups:
        bound = section.good_from
        rewards = [candidate.reward for candidate in group]
        mean = sum(rewards) / len(rewards)
        for candidate in group:
            if bound is None and (candidate.reward == mean or not has_signal(rewards)):
                left_out["neither good nor bad"] += 1
                continue
            good = candidate.reward >= bound if bound is not None else candidate.reward > mean
            tokens = {"prompt_ids": candidate.prompt, "completion_ids": candidate.completion}
            table.append({**tokens, "mask": candidate.mask, "label": good})
    return table


def _in_batches(table: Sequence[dict[str, Any]], settings: PreferenceSettings) -> list[dict[str, Any]]:
    """Return the rows in the order in which they are learnt, by chance; each epoch has the same.

    Raises `ConfigError` where there are too few.
    """
    good = sum(bool(row.get("label")) for row in table)
    kto = not isinstance(settings, DPOSettings)
    if not table or (kto and good in (0, len(table))):
        what = f"all {len(table)} rollouts are {'good' if good else 'bad'}" if table else "no rollout is left"
        raise ConfigError(
            what if kto else "no two rollouts of one example differ in their reward",
            hint="play each example several times, and not greedily: "
            "`rollouts = { per_example = 8, temperature = 1.0 }`",
        )
    order = list(range(len(table)))
    derived_rng(settings.schedule.seed, "order of preferences").shuffle(order)
    return [table[place] for place in order]


class PairTrainer(DPOTrainer):  # type: ignore[misc]
    """TRL's DPO on rows that are tokens already."""

    def _prepare_dataset(self, dataset: Any, *unused: Any) -> Any:
        return dataset


class VerdictTrainer(KTOTrainer):  # type: ignore[misc]
    """TRL's KTO on rows that are tokens already."""

    def _prepare_dataset(self, dataset: Any, *unused: Any) -> Any:
        return dataset


@dataclass
class PairCollator(DataCollatorForPreference):  # type: ignore[misc]
    """TRL's batches of pairs; only tokens of the policy count."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch: all chosen, then all rejected."""
        sides = ("chosen_mask", "rejected_mask")
        masks = _masks([(row["prompt_ids"], row[side]) for side in sides for row in examples])
        return {**super().torch_call(examples), "completion_mask": masks}


@dataclass
class VerdictCollator(DataCollatorForUnpairedPreference):  # type: ignore[misc]
    """TRL's batches of single rollouts; only tokens of the policy count."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch, with a completion of another row after each prompt where KTO wants it."""
        batch: dict[str, Any] = super().torch_call(examples)
        batch["completion_mask"] = _masks([(row["prompt_ids"], row["mask"]) for row in examples])
        if "KL_completion_mask" in batch:
            batch["KL_completion_mask"] = _masks([(row["prompt_ids"], row["KL_mask"]) for row in examples])
        return batch


def _masks(rows: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Return the masks of prompts, 0, and of what follows them."""
    return pad_sequence([torch.tensor([0] * len(prompt) + own) for prompt, own in rows], batch_first=True)


def _pair_trainer(
    section: DPOSection,
    table: list[dict[str, Any]],
    arguments: dict[str, Any],
    more: dict[str, Any],
    pad: int,
    given: dict[str, Any],
) -> PairTrainer:
    if section.imitation:
        arguments |= {"loss_type": [section.loss, "sft"], "loss_weights": [1.0, section.imitation]}
    return PairTrainer(
        **given,
        train_dataset=Dataset.from_list(table),
        data_collator=PairCollator(pad_token_id=pad),
        args=hand_on(DPOConfig, arguments, more, "trl"),
    )


def _verdict_trainer(
    section: KTOSection,
    table: list[dict[str, Any]],
    arguments: dict[str, Any],
    more: dict[str, Any],
    pad: int,
    given: dict[str, Any],
) -> VerdictTrainer:
    if section.loss == "kto":  # how far the policy moved is measured on answers to other prompts
        others = [table[-1], *table[:-1]]
        table = [
            {**row, "KL_completion_ids": other["completion_ids"], "KL_mask": other["mask"]}
            for row, other in zip(table, others, strict=True)
        ]
    good = sum(row["label"] for row in table)
    bad = len(table) - good
    # Both sides weigh the same, however many rollouts there are of each.
    weights = {"desirable_weight": min(1.0, bad / good), "undesirable_weight": min(1.0, good / bad)}
    return VerdictTrainer(
        **given,
        train_dataset=Dataset.from_list(table),
        data_collator=VerdictCollator(pad_token_id=pad),
        args=hand_on(KTOConfig, {**weights, **arguments}, more, "trl"),
    )

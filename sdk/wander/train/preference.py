"""DPO and KTO on better and worse rollouts of the same example, with TRL's trainers. Read from top to bottom.

TRL formats texts with the chat template and scores every token after the prompt. Here, a rollout consists of
the sampled tokens, and only these are scored. The environment's messages in between are context. The rows are
therefore prepared in advance, and the batches contain our own masks.

The reference is the initial policy. Its log-probabilities of each row are computed once, before the first
step, so that no second model stays in memory.

Two things are left out on purpose. A rollout in several sequences (of a template that rewrites history) is
not used, because TRL scores a single sequence per side. Training runs in a single process.
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
    from trl import DPOConfig, KTOConfig
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

from wander.models.chat import ChatFormat, ChatOptions
from wander.models.loading import LoadedModel
from wander.models.sampling import end_of_turn_ids
from wander.seeding import derived_rng
from wander.train.config import DPOSection, DPOSettings, KTOSection, PreferenceSettings
from wander.train.internals import DPOInternals, KTOInternals
from wander.train.offline import chat_options, learn, name_ends, row_error, tokens_of
from wander.train.records.record import Progress
from wander.train.rollouts.sampler import has_signal
from wander.train.settings.library_arguments import build_library_config
from wander.train.watch.reporting import require_trackers
from wander.train.weights import load_learner, turn_off_dropout

ENOUGH = 2
"""Minimum number of rollouts of an example for a comparison."""


@dataclass(frozen=True)
class PreferenceResult:
    """The result of a DPO or KTO run."""

    model: Path
    rows: int
    """Number of pairs (DPO) or rollouts (KTO) that were learned."""
    left_out: dict[str, int]
    """Number of rollouts that were left out, by reason."""
    as_sampled: int
    """Number of rollouts that contained their sampled tokens; the others were formatted by the chat
    template."""
    steps: int
    interrupted: bool
    first_loss: float
    final_loss: float
    """Mean loss over the last tenth of the steps."""
    final_margin: float
    """Mean preference of the policy for good rollouts, times beta, over the last tenth of the steps."""
    seconds: float


@dataclass(frozen=True)
class Candidate:
    """A rollout that can be compared with others."""

    reward: float
    prompt: list[int]
    """Ids before the first sampled token."""
    completion: list[int]
    mask: list[int]
    """Mask of the completion: 1 for a token of the policy."""


@dataclass
class Candidates:
    """The rollouts in a run's rows, grouped by example and prompt."""

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

    Metrics of each step are written to `folder/metrics.jsonl`. `resume` continues from the folder's last
    checkpoint, if there is a checkpoint; rows and settings must be the same. Raises `ConfigError` if no row
    can be learned from, and `RunError` for a finished run or a damaged checkpoint.
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
            # TRL's copy of the first adapters has provided its log-probabilities, and would be saved in every
            # checkpoint.
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
    """Return the rollouts that can be compared, by example, and the numbers of the others, by reason."""
    form = ChatFormat(loaded.tokenizer, end_of_turn_ids(loaded.model, loaded.tokenizer), options)
    candidates = Candidates()
    for number, row in enumerate(rows, start=1):
        if row.get("reward") is None or row.get("example_id") is None:
            raise ConfigError(
                f"row {number} lacks `reward` or `example_id`, so it cannot be compared",
                hint="create the rows with `wander runs data RUN --out rows.jsonl`",
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
    """Return pairs of each group: the best with the worst, the second best with the second worst, and so
    on."""
    table = []
    for group in groups:
        # Among equal rewards, the order of the rollouts is kept.
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
        left_out["only rollout of its example"] += len(group) < ENOUGH
        left_out["rewards do not differ enough"] += 2 * (len(pairs) - len(taken))
    return table


def _table_of_verdicts(
    groups: Sequence[Sequence[Candidate]], section: KTOSection, left_out: Counter[str]
) -> list[dict[str, Any]]:
    """Return the good and the bad rollouts."""
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
    """Return the rows in random order, which is the same in every epoch.

    Raises `ConfigError` if there are too few rows.
    """
    good = sum(bool(row.get("label")) for row in table)
    kto = not isinstance(settings, DPOSettings)
    if not table or (kto and good in (0, len(table))):
        fault = (
            f"all {len(table)} rollouts are {'good' if good else 'bad'}" if table else "no rollout is left"
        )
        raise ConfigError(
            fault if kto else "no example has rollouts with different rewards",
            hint="play each example several times, with sampling: "
            "`rollouts = { per_example = 8, temperature = 1.0 }`",
        )
    order = list(range(len(table)))
    derived_rng(settings.schedule.seed, "order of preferences").shuffle(order)
    return [table[place] for place in order]


@dataclass
class PairCollator(DataCollatorForPreference):  # type: ignore[misc]
    """TRL's batches of pairs, in which only the policy's tokens count."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch: all chosen rollouts, then all rejected ones."""
        sides = ("chosen_mask", "rejected_mask")
        masks = _masks([(row["prompt_ids"], row[side]) for side in sides for row in examples])
        return {**super().torch_call(examples), "completion_mask": masks}


@dataclass
class VerdictCollator(DataCollatorForUnpairedPreference):  # type: ignore[misc]
    """TRL's batches of single rollouts, in which only the policy's tokens count."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch; for KTO, each prompt also gets the completion of another row."""
        batch: dict[str, Any] = super().torch_call(examples)
        batch["completion_mask"] = _masks([(row["prompt_ids"], row["mask"]) for row in examples])
        if "KL_completion_mask" in batch:
            batch["KL_completion_mask"] = _masks([(row["prompt_ids"], row["KL_mask"]) for row in examples])
        return batch


def _masks(rows: list[tuple[list[int], list[int]]]) -> torch.Tensor:
    """Return the masks of rows, with 0 for their prompts."""
    return pad_sequence([torch.tensor([0] * len(prompt) + own) for prompt, own in rows], batch_first=True)


def _pair_trainer(
    section: DPOSection,
    table: list[dict[str, Any]],
    arguments: dict[str, Any],
    more: dict[str, Any],
    pad: int,
    given: dict[str, Any],
) -> DPOInternals:
    if section.imitation:
        arguments |= {"loss_type": [section.loss, "sft"], "loss_weights": [1.0, section.imitation]}
    return DPOInternals(
        **given,
        train_dataset=Dataset.from_list(table),
        data_collator=PairCollator(pad_token_id=pad),
        args=build_library_config(DPOConfig, arguments, more, "trl"),
    )


def _verdict_trainer(
    section: KTOSection,
    table: list[dict[str, Any]],
    arguments: dict[str, Any],
    more: dict[str, Any],
    pad: int,
    given: dict[str, Any],
) -> KTOInternals:
    if section.loss == "kto":  # KTO estimates the KL divergence from answers paired with other prompts
        others = [table[-1], *table[:-1]]
        table = [
            {**row, "KL_completion_ids": other["completion_ids"], "KL_mask": other["mask"]}
            for row, other in zip(table, others, strict=True)
        ]
    good = sum(row["label"] for row in table)
    bad = len(table) - good
    # Good and bad rollouts get the same total weight, regardless of their numbers.
    weights = {"desirable_weight": min(1.0, bad / good), "undesirable_weight": min(1.0, good / bad)}
    return KTOInternals(
        **given,
        train_dataset=Dataset.from_list(table),
        data_collator=VerdictCollator(pad_token_id=pad),
        args=build_library_config(KTOConfig, {**weights, **arguments}, more, "trl"),
    )

"""Decides which rollouts an evaluation plays: which examples, how many rollouts of each, and which limits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from wander.clients.base import Client
from wander.errors import ConfigError, DatasetError
from wander.evals.run.budget import Budget, Share
from wander.evals.store.bookmark import RecordedExamples, recorded_examples
from wander.evals.store.examples import PAGE, PackedExamples
from wander.evals.store.folder import RunFolder
from wander.handle import EnvironmentHandle, Split
from wander.seeding import derived_rng
from wander.types import SamplingArgs
from wander.wire.run_record import ExampleChoice, Shard


@dataclass(frozen=True)
class EvaluationPlan:
    """Rollouts and settings of an evaluation."""

    num_examples: int | None = None
    """Number of examples. None means all examples of the split."""
    rollouts_per_example: int = 1
    split: Split = "eval"
    seed: int = 0
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    concurrency: int = 32
    """Maximum number of model calls in flight, over all rollouts, workers and judges that share the client's
    limiter. For a client without a limiter, such as a model in this process, it limits the rollouts
    instead."""
    max_rollouts: int | None = None
    """Maximum number of rollouts in flight. None means twice `concurrency`. A rollout starts only when a call
    could be made for it, so there are more rollouts than calls only while environments and tools are at work.
    With None, rollouts whose calls wait after a refusal do not count, up to eight times `concurrency` in
    total."""
    max_retries: int = 2
    """Number of times that a rollout with a retryable failure is played again."""
    shuffle: bool = False
    """Whether to draw the examples at random from the whole split, by the seed, instead of taking the
    first."""
    strata: bool = False
    """Whether to take the examples evenly from the strata that the environment declares."""
    strict: bool = False
    """Whether to raise an error for a row that cannot become an example. Otherwise its rollouts fail."""
    budget: Budget = field(default_factory=Budget)
    """Spending limits of the run. After a limit is reached, no rollout starts, and those in flight finish."""
    share: Share | None = None
    """The run's part in a budget shared with other runs, in addition to its own budget."""
    only_failed: bool = False
    """Whether a resumed run plays only the failed rollouts, and skips missing ones."""
    shard: Shard | None = None
    """Shard of the run to play, in a separate folder. None plays the whole run."""
    notes: str = ""
    rerun_of: str | None = None
    """Id of the run that this run repeats."""

    def __post_init__(self) -> None:
        for name in ("rollouts_per_example", "concurrency", "max_rollouts", "max_retries", "num_examples"):
            value, least = getattr(self, name), 0 if name == "max_retries" else 1
            if value is not None and value < least:
                raise ConfigError(f"`{name}` must be at least {least}, not {value}")

    def most_rollouts(self, client: Client) -> int:
        """Return the maximum number of rollouts in flight with this client."""
        wanted = self.max_rollouts or 2 * self.concurrency
        return wanted if client.limiter is not None else min(wanted, self.concurrency)

    def most_started(self, client: Client) -> int:
        """Return the maximum number of started rollouts, including those whose calls wait after a refusal."""
        playing = self.most_rollouts(client)
        return playing if self.max_rollouts is not None or client.limiter is None else 4 * playing

    @property
    def choice(self) -> ExampleChoice:
        """How the examples are chosen, as the manifest names it."""
        if self.strata:
            return "shuffled strata" if self.shuffle else "strata"
        return "shuffled" if self.shuffle else "first"


async def planned_examples(environment: EnvironmentHandle, plan: EvaluationPlan) -> PackedExamples:
    """Return the examples of a plan in their order."""
    if plan.strata and not environment.info.strata:
        raise ConfigError(
            f"`{environment.info.name}` declares no strata to choose its examples from",
            hint="leave out `strata`, or declare them in the environment with `strata=`",
        )
    if plan.shuffle or plan.strata:
        whole = await _packed(environment, plan, None)
        order = list(range(len(whole)))
        if plan.shuffle:
            derived_rng(plan.seed, "evaluation order").shuffle(order)
        if plan.strata:
            order = [order[position] for position in in_turn([whole.strata[position] for position in order])]
        examples = PackedExamples(whole[position] for position in order[: plan.num_examples])
    else:
        examples = await _packed(environment, plan, plan.num_examples)
    if not examples:
        raise ConfigError(f"the `{plan.split}` split of `{environment.info.name}` has no examples")
    if len(set(examples.ids)) < len(examples):
        twice = next(name for name, count in Counter(examples.ids).items() if count > 1)
        raise DatasetError(f"several rows have the example id `{twice}` in `{environment.info.name}`")
    return examples


def planned_on_record(
    environment: EnvironmentHandle, plan: EvaluationPlan, begun: RunFolder | None
) -> RecordedExamples | None:
    """Return the stored examples of a resumed run, or None if they must be regenerated."""
    if begun is None or plan.choice != "first":
        return None
    size = _size(environment, plan.split)
    count = size if plan.num_examples is None else min(plan.num_examples, size or plan.num_examples)
    return recorded_examples(environment, plan.split, count, begun)


def _size(environment: EnvironmentHandle, split: Split) -> int | None:
    return environment.info.eval_examples if split == "eval" else environment.info.train_examples


async def _packed(environment: EnvironmentHandle, plan: EvaluationPlan, most: int | None) -> PackedExamples:
    """Return the first examples of the plan's split, with at most one page uncompressed in memory."""
    packed, split = PackedExamples(), plan.split
    most = _size(environment, split) if most is None else most
    taken = 0
    while most is None or taken < most:
        # For an endless split, this raises an error unless the number of examples is given.
        count = None if most is None else min(PAGE, most - taken)
        page = await environment.examples(split, taken, count)
        for example in page:
            if plan.strict and example.fault is not None:
                raise DatasetError(
                    example.fault,
                    hint="fix the row, or leave out `strict` so that only the rollouts of this row fail",
                )
            packed.append(example)
        taken += len(page)
        if count is None or len(page) < count:
            break
    return packed


def in_turn(strata: Sequence[int | None]) -> list[int]:
    """Return the positions of examples, ordered such that every prefix covers the strata as evenly as
    possible.

    The strata take turns in ascending order, and examples without a stratum come last. Within a stratum the
    order does not change. Even a run that ends early therefore covers the strata evenly.
    """
    positions: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for position, stratum in enumerate(strata):
        positions[stratum is None, stratum or 0].append(position)
    rows = zip_longest(*(positions[key] for key in sorted(positions)))
    return [position for position in chain.from_iterable(rows) if position is not None]

"""Which rollouts an evaluation plays: how many of which examples, how often, and within which bounds."""

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
    """Which rollouts an evaluation plays, and how."""

    num_examples: int | None = None
    """How many examples; None means all of the split."""
    rollouts_per_example: int = 1
    split: Split = "eval"
    seed: int = 0
    sampling: SamplingArgs = field(default_factory=SamplingArgs)
    concurrency: int = 32
    """Most model calls in flight, of all rollouts, workers and judges that share the client's limiter. A
    client without a limiter, such as a model in this process, gets so many rollouts instead."""
    max_rollouts: int | None = None
    """Most rollouts in flight; None means twice `concurrency`. One starts whenever a call could be made for
    it, so there are more rollouts than calls only while environments and tools are at work. Without this
    bound, rollouts whose calls wait out a refusal do not count, up to eight times `concurrency` in total."""
    max_retries: int = 2
    """How often a rollout with a retryable failure is played again."""
    shuffle: bool = False
    """Draw the examples from the whole split, by the seed, instead of taking the first."""
    strata: bool = False
    """Take the examples evenly from the strata that the environment declares."""
    strict: bool = False
    """Raise for a row that cannot become an example, instead of letting its rollouts fail."""
    budget: Budget = field(default_factory=Budget)
    """What the run may spend; once that is spent no rollout begins, and those that play are finished."""
    share: Share | None = None
    """The run's part in a budget that it shares with others, beside its own."""
    only_failed: bool = False
    """Of a run that is resumed, play the rollouts that failed and leave those that are missing."""
    shard: Shard | None = None
    """Play this part of the run alone, into a folder of its own; None plays the whole."""
    notes: str = ""
    rerun_of: str | None = None
    """Id of the run that this one repeats."""

    def __post_init__(self) -> None:
        for name in ("rollouts_per_example", "concurrency", "max_rollouts", "max_retries", "num_examples"):
            value, least = getattr(self, name), 0 if name == "max_retries" else 1
            if value is not None and value < least:
                raise ConfigError(f"`{name}` must be at least {least}, not {value}")

    def most_rollouts(self, client: Client) -> int:
        """Return how many rollouts may be in flight with this client."""
        wanted = self.max_rollouts or 2 * self.concurrency
        return wanted if client.limiter is not None else min(wanted, self.concurrency)

    def most_started(self, client: Client) -> int:
        """Return how many rollouts may have started, those included whose calls wait out a refusal."""
        playing = self.most_rollouts(client)
        return playing if self.max_rollouts is not None or client.limiter is None else 4 * playing

    @property
    def choice(self) -> ExampleChoice:
        """How the examples are chosen, as the manifest says it."""
        if self.strata:
            return "shuffled strata" if self.shuffle else "strata"
        return "shuffled" if self.shuffle else "first"


async def planned_examples(environment: EnvironmentHandle, plan: EvaluationPlan) -> PackedExamples:
    """Return the ordered examples that a plan plays."""
    if plan.strata and not environment.info.strata:
        raise ConfigError(
            f"`{environment.info.name}` declares no strata to choose its examples from",
            hint="leave `strata` out; an environment declares its strata by `strata=`",
        )
    if plan.shuffle or plan.strata:
        whole = await _packed(environment, plan, None)
        order = list(range(len(whole)))
        if plan.shuffle:
            derived_rng(plan.seed, "evaluation order").shuffle(order)
        if plan.strata:
            order = [order[place] for place in in_turn([whole.strata[place] for place in order])]
        examples = PackedExamples(whole[place] for place in order[: plan.num_examples])
    else:
        examples = await _packed(environment, plan, plan.num_examples)
    if not examples:
        raise ConfigError(f"the `{plan.split}` split of `{environment.info.name}` has no examples")
    if len(set(examples.ids)) < len(examples):
        twice = next(name for name, count in Counter(examples.ids).items() if count > 1)
        raise DatasetError(f"example id `{twice}` stands for several rows of `{environment.info.name}`")
    return examples


def planned_on_record(
    environment: EnvironmentHandle, plan: EvaluationPlan, begun: RunFolder | None
) -> RecordedExamples | None:
    """Return the examples of a run that is resumed, unmade; None where they have to be made to be known."""
    if begun is None or plan.choice != "first":
        return None
    size = _size(environment, plan.split)
    count = size if plan.num_examples is None else min(plan.num_examples, size or plan.num_examples)
    return recorded_examples(environment, plan.split, count, begun)


def _size(environment: EnvironmentHandle, split: Split) -> int | None:
    return environment.info.eval_examples if split == "eval" else environment.info.train_examples


async def _packed(environment: EnvironmentHandle, plan: EvaluationPlan, most: int | None) -> PackedExamples:
    """Return the first examples of the plan's split, of which no more than a page is in memory."""
    packed, split = PackedExamples(), plan.split
    most = _size(environment, split) if most is None else most
    taken = 0
    while most is None or taken < most:
        # A split without an end raises where nobody says how many.
        count = None if most is None else min(PAGE, most - taken)
        page = await environment.examples(split, taken, count)
        for example in page:
            if plan.strict and example.fault is not None:
                raise DatasetError(
                    example.fault, hint="mend the row, or leave `strict` out: only its rollouts fail"
                )
            packed.append(example)
        taken += len(page)
        if count is None or len(page) < count:
            break
    return packed


def in_turn(strata: Sequence[int | None]) -> list[int]:
    """Return the places of examples so that every beginning holds their strata as evenly as can be.

    The strata take turns in ascending order, those without one last; within one the given order stays. So a
    run that ends early is even too.
    """
    places: defaultdict[tuple[bool, int], list[int]] = defaultdict(list)
    for place, stratum in enumerate(strata):
        places[stratum is None, stratum or 0].append(place)
    rows = zip_longest(*(places[key] for key in sorted(places)))
    return [place for place in chain.from_iterable(rows) if place is not None]

"""Playing of a step: its groups, then other groups in place of groups that teach nothing.

If all rewards of a group are equal, its advantages are zero. Late in a run, most groups are like that. With
`data.refill_rounds`, other examples are played in their place until every group of the step teaches something
or the rounds are used up (DAPO calls this dynamic sampling). Groups that could not be replaced stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from wander.errors import RunError
from wander.train.config import GRPOSettings
from wander.train.rollouts.rows import Row, draw_learner
from wander.train.rollouts.sampler import ExampleSampler, Pick, TrainingMixture, has_signal
from wander.train.rollouts.source import Assignment, Played, RolloutSource, StepRollouts
from wander.types import Example, Rollout

if TYPE_CHECKING:
    from wander.models.policy import PolicyClient
    from wander.train.rollouts.opponents import Opponents

FEWEST_SCORED = 2
"""Scored rollouts that a group needs to learn from it: a single one has nothing to be compared with."""

Exchange = Callable[[list[Any]], list[Any]]
"""Function that sends this process's items and returns the items of all processes, by rank."""


@dataclass
class Group:
    """The rollouts of an example, and their rows, which are compared with each other."""

    pick: Pick
    rollouts: list[Rollout]
    rows: list[Row]
    learner: str | None = None
    """Player that the rows are for; None without players."""

    @property
    def rewards(self) -> list[float | None]:
        """Reward of each row; None for a failed rollout, which gets no advantage."""
        return [row.reward for row in self.rows]

    @property
    def scored(self) -> list[float]:
        """Rewards of the scored rows."""
        return [reward for reward in self.rewards if reward is not None]


@dataclass
class PlayedStep:
    """The rollouts of a step."""

    groups: list[Group]
    """Groups to learn from, one for each slot."""
    played: list[Group]
    """All groups that were played, including replaced groups."""
    rows: list[Row] = field(default_factory=list)
    """Rows to learn from, with groups together. Rows of a group that was left out have no reward."""
    first_idle: int = 0
    """Number of groups in the first round that teach nothing."""
    refilled: int = 0
    """Number of groups in the first round that were replaced."""
    left_out: int = 0
    """Number of groups with too few scored rollouts that were not replaced."""
    calls: list[StepRollouts] = field(default_factory=list)
    """Time and tokens of each round."""

    @property
    def rollouts(self) -> list[Rollout]:
        """Rollout of each row, with groups together."""
        return [rollout for group in self.groups for rollout in group.rollouts]


class StepPlayer:
    """Plays the steps of a run, or a process's share of them."""

    def __init__(
        self,
        source: RolloutSource,
        mixture: TrainingMixture,
        settings: GRPOSettings,
        rank: int,
        exchange: Exchange,
        opponents: Opponents,
        played: Played | None = None,
    ) -> None:
        """Create the player; `played` is called when rollouts of a step end."""
        self.played = played
        self.opponents = opponents
        self.roles = settings.count_roles(source.info.players)
        self.source = source
        self.mixture = mixture
        self.settings = settings
        self.rank = rank
        self.exchange = exchange

    def draw(self, slots: Sequence[int]) -> list[Pick]:
        """Draw the next step, which is the same in every process; return the examples for these slots."""
        picks = self.mixture.draw(self.settings.batch.groups // self.roles)
        return [picks[number] for number in dict.fromkeys(slot // self.roles for slot in slots)]

    def play(self, picks: Sequence[Pick]) -> PlayedStep:
        """Play groups of a step, and other groups in place of groups that teach nothing.

        Raises `RunError` if every rollout failed.
        """
        return self.finish(picks, self.play_groups(picks))

    def play_groups(self, picks: Sequence[Pick], client: PolicyClient | None = None) -> StepRollouts:
        """Play groups, with their own `client` if they belong to a later step; `finish` processes the
        result."""
        size = self.settings.batch.group_size
        return self.source.play(
            [Assignment(pick.position, index, pick.environment) for pick in picks for index in range(size)],
            self.played if client is None else None,
            client,
        )

    def finish(self, picks: Sequence[Pick], call: StepRollouts) -> PlayedStep:
        """Return the step after some of its groups were replaced; raises the same errors as `play`.

        The rewards influence which examples are drawn next.
        """
        groups = self._groups(picks, call)
        step = PlayedStep(list(groups), list(groups), calls=[call])
        step.first_idle = len(self._idle(step))
        for _ in range(self.settings.data.refill_rounds):
            if not self._refill(step):
                break
        self._require_one(step)
        for group in step.groups:
            enough = len(group.scored) >= FEWEST_SCORED
            step.rows += group.rows if enough else [replace(row, reward=None) for row in group.rows]
            step.left_out += not enough
        for pick, rewards in self.exchange([(group.pick, group.scored) for group in step.played]):
            self.mixture.observe(pick, rewards)
        return step

    def _refill(self, step: PlayedStep) -> bool:
        """Play a round of replacement groups; returns False if no process needs any."""
        idle = self._idle(step)
        wanted = [step.groups[idle[n % len(idle)]].pick.environment for n in range(self._count(step, idle))]
        everyone = self.exchange([wanted])
        picks = self.mixture.refill([number for share in everyone for number in share])
        before = sum(len(share) for share in everyone[: self.rank])
        if not picks:
            return False
        if not wanted:
            return True
        own = picks[before : before + len(wanted)]
        call = self.play_groups(own)
        groups = self._groups(own, call)
        step.played += groups
        step.calls.append(call)
        for group in groups:
            places = [n for n in idle if step.groups[n].pick.environment == group.pick.environment]
            if places and self._teaches(group):
                step.groups[places[0]] = group
                idle.remove(places[0])
                step.refilled += 1
        return True

    def _count(self, step: PlayedStep, idle: Sequence[int]) -> int:
        """Return the number of examples to play so that enough of them are likely to teach something."""
        if not idle:
            return 0
        taught = sum(self._teaches(group) for group in step.played)
        share = (taught + 1) / (len(step.played) + 2)
        return min(math.ceil(len(idle) / share / self.roles), len(step.groups) // self.roles)

    def _idle(self, step: PlayedStep) -> list[int]:
        return [number for number, group in enumerate(step.groups) if not self._teaches(group)]

    def _teaches(self, group: Group) -> bool:
        scored = group.scored
        return len(scored) >= FEWEST_SCORED and has_signal(scored)

    def _groups(self, picks: Sequence[Pick], call: StepRollouts) -> list[Group]:
        size = self.settings.batch.group_size
        groups = []
        for number, pick in enumerate(picks):
            part = slice(number * size, (number + 1) * size)
            rollouts = call.rollouts[part]
            players = learners_of(self.source, self.settings, pick.environment)
            drawn = [draw_learner(players, rollouts[0].seed)]
            groups += [
                Group(pick, rollouts, [self._row(rollout, learner) for rollout in rollouts], learner)
                for learner in (players if self.roles > 1 else drawn)
            ]
        return groups

    def _row(self, rollout: Rollout, learner: str | None) -> Row:
        sampling = self.settings.sampling
        limit = sampling.max_rollout_tokens
        return Row.of(rollout, learner).penalized(
            sampling.overlong_tokens, limit or sampling.max_tokens, by_turn=limit is None
        )

    def _require_one(self, step: PlayedStep) -> None:
        rollouts = [rollout for group in step.played for rollout in group.rollouts]
        failure = rollouts[0].failure if rollouts else None
        if failure is None or any(rollout.failure is None for rollout in rollouts):
            return
        raise RunError(
            f"all {len(rollouts)} rollouts of a step failed, each {self.source.retries + 1} times, the first "
            f"with {failure.type}: {failure.message}",
            hint="run `wander eval` on this environment and model to see the failures",
        )


def mixture_of(source: RolloutSource, settings: GRPOSettings) -> TrainingMixture:
    """Return the sampler of the examples of a run's steps."""
    data = settings.data
    samplers = [
        ExampleSampler(
            data,
            length=source.length(number),
            strata=source.strata(number),
            seed=settings.schedule.seed,
        )
        for number in range(len(source.environments))
    ]
    return TrainingMixture(samplers, [environment.weight for environment in settings.environments] or [1.0])


def learners_of(source: RolloutSource, settings: GRPOSettings, environment: int = 0) -> list[str]:
    """Return the players that the policy plays and learns as; empty without players."""
    others = settings.other_players
    return [player for player in source.environments[environment].info.players if player not in others]


def plan_examples(source: RolloutSource, settings: GRPOSettings) -> list[list[Example]]:
    """Return, for each environment, every example that the run may play, in the order of its steps.

    For endless datasets, these are only the first groups of each step, because the number of replacements is
    unknown.
    """
    # a curriculum only changes how often an example is played
    data = settings.data.model_copy(update={"curriculum": False})
    mixture = mixture_of(source, settings.model_copy(update={"data": data}))
    steps, groups = settings.batches, settings.batch.groups // settings.count_roles(source.info.players)
    rows: list[dict[int, None]] = [{} for _ in mixture.samplers]
    for pick in (pick for _ in range(steps) for pick in mixture.draw(groups)):
        length = source.length(pick.environment)
        rows[pick.environment][pick.position % length if length else pick.position] = None
    for places, sampler in zip(rows, mixture.samplers, strict=True):
        for _ in range(steps * groups * data.refill_rounds if sampler.length else 0):
            if len(places) == sampler.length:
                break
            places[sampler.draw() % (sampler.length or 1)] = None
    return [source.examples(list(places), number) for number, places in enumerate(rows)]


def merge_shares(shares: Sequence[PlayedStep]) -> PlayedStep:
    """Join the shares of the processes to a step, with groups in the order of their slots."""
    if len(shares) == 1:
        return shares[0]
    rounds = zip_longest(*(share.calls for share in shares))
    return PlayedStep(
        groups=[group for share in shares for group in share.groups],
        played=[group for share in shares for group in share.played],
        rows=[row for share in shares for row in share.rows],
        first_idle=sum(share.first_idle for share in shares),
        refilled=sum(share.refilled for share in shares),
        left_out=sum(share.left_out for share in shares),
        calls=[_merge_round([call for call in calls if call is not None]) for calls in rounds],
    )


def _merge_round(calls: Sequence[StepRollouts]) -> StepRollouts:
    tokens = sum(call.sampled_tokens for call in calls)
    return StepRollouts(
        rollouts=[rollout for call in calls for rollout in call.rollouts],
        # The processes play at the same time, and the step waits for the slowest.
        seconds=max(call.seconds for call in calls),
        model_seconds=max(call.model_seconds for call in calls),
        retried=sum(call.retried for call in calls),
        sampled_tokens=tokens,
        entropy=sum(call.entropy * call.sampled_tokens for call in calls) / tokens if tokens else 0.0,
    )

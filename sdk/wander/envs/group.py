"""Combines several environments into one."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from wander.dataset import ProceduralRows
from wander.environment import Environment
from wander.errors import ConfigError
from wander.handle import RolloutRequest, Split
from wander.parsers import Parser
from wander.rollout.calls import ModelCalls
from wander.rollout.hooks import call_every, teardown
from wander.rubrics import Rubric, Score
from wander.types import Example, RewardFunctionInfo, Rollout, State, reward_range

COLUMN = "member"
"""Column of a group's example that names the member it comes from, and holds the member's own values."""


class EnvGroup(Environment):
    """Mixes environments. The member that an example comes from plays, stops and scores it.

    - `envs`: members by name, or a list. In a list, members are identified by `env_names` or their own names.
    - `weights`: shares of the members in every prefix of the dataset, by name or in order. No example is
      repeated, so the dataset ends when the shares can no longer be kept. Without weights, it contains all
      examples of all members, in constant proportions.

    An example keeps its member's seed, so it is played exactly as without the group. Its id is `member/id`.
    Metrics are reported as `member.metric`, for the rollouts of that member only.
    """

    kind: ClassVar[str] = "group"

    def __init__(
        self,
        envs: Mapping[str, Environment] | Sequence[Environment],
        env_names: Sequence[str] | None = None,
        *,
        weights: Mapping[str, float] | Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        self.members = _name_members(envs, env_names)
        self.weights = _read_weights(weights, list(self.members))
        members = list(self.members.values())
        kinds = {type(member.parser) for member in members}
        super().__init__(
            dataset=self._rows("train") if _has(members, "train") else None,
            eval_dataset=self._rows("eval") if _has(members, "eval") else None,
            rubric=GroupRubric(self.members),
            parser=members[0].parser if len(kinds) == 1 else Parser(),
            **{"deterministic": all(member.deterministic for member in members), **kwargs},
        )
        if self.reward_bounds is None:
            # Not `member.info`, because that would read the datasets.
            bounds = [
                reward_range(member.reward_bounds, member.rubric.describe()) or (0.0, 0.0)
                for member in members
            ]
            self.reward_bounds = min(low for low, _ in bounds), max(high for _, high in bounds)

    @property
    def turn_limit(self) -> int | None:
        """Maximum number of turns over all members, or None if a member's turns are unlimited."""
        limits = [member.turn_limit for member in self.members.values()]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def gold(self, example: Example) -> Any:
        """Return the gold completions from the example's member."""
        name, member_example = route_example(example)
        return self.members[name].gold(member_example)

    async def play(self, state: State, model: ModelCalls) -> None:
        """Let the member play its example."""
        name, member_example = route_example(state.example)
        state["example"] = member_example
        await self.members[name].play(state, model)

    async def play_request(self, request: RolloutRequest) -> list[Rollout]:
        """Make the member play and score its example. The records have the group's example id and names."""
        name, member_example = route_example(request.example)
        return [
            rollout.model_copy(
                update={
                    "example_id": request.example.example_id,
                    "metrics": _prefix(name, rollout.metrics),
                }
            )
            for rollout in await request.send(self.members[name], member_example)
        ]

    @teardown
    async def close_members(self) -> None:
        """Tear down every member, even after one of them failed."""
        await call_every(member.teardown for member in self.members.values())

    def _rows(self, split: Split) -> Any:
        """Return a function that creates the rows, so that nothing is read before it is needed."""

        def rows() -> ProceduralRows:
            names = list(self.members)
            datasets = [self.members[name].dataset(split) for name in names]
            mixture = Mixture([dataset.length for dataset in datasets], self.weights)

            def row_at(index: int) -> dict[str, Any]:
                member, position = mixture.at(index)
                return group_row(names[member], datasets[member][position])

            return ProceduralRows(row_at, mixture.length)

        return rows


class GroupRubric(Rubric):
    """Scores a rollout with the rubric of its example's member."""

    def __init__(self, members: Mapping[str, Environment]) -> None:
        super().__init__()
        self.members = members

    def describe(self) -> list[RewardFunctionInfo]:
        """Return the reward functions of all members, with names such as `member.function`."""
        return [
            info.model_copy(update={"name": f"{name}.{info.name}"})
            for name, member in self.members.items()
            for info in member.rubric.describe()
        ]

    @property
    def has_group_functions(self) -> bool:
        """Whether any member scores whole groups."""
        return any(member.rubric.has_group_functions for member in self.members.values())

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Score with the member's rubric and parser. `parser` is ignored."""
        name, member_example = route_example(state.example)
        member = self.members[name]
        return _rename(
            name, await member.rubric.score(State({**state, "example": member_example}), member.parser)
        )

    async def score_group(self, states: Sequence[State], parser: Parser | None = None) -> list[Score]:
        """Score the rollouts of one example with its member's rubric and parser."""
        if not states:
            return []
        name, member_example = route_example(states[0].example)
        member = self.members[name]
        scores = await member.rubric.score_group(
            [State({**state, "example": member_example}) for state in states], member.parser
        )
        return [_rename(name, score) for score in scores]


def group_row(name: str, example: Example) -> dict[str, Any]:
    """Return a member's example as a row of the group."""
    origin = {"name": name, "example_id": example.example_id, "index": example.index, "split": example.split}
    if COLUMN in example.columns:
        origin["columns"] = {COLUMN: example.columns[COLUMN]}  # the member is itself a group
    return {
        **example.columns,
        "example_id": f"{name}/{example.example_id}",
        "prompt": example.prompt,
        "answer": example.answer,
        "info": example.info,
        "seed": example.seed,
        "stratum": example.stratum,
        COLUMN: origin,
    }


def route_example(example: Example) -> tuple[str, Example]:
    """Return the member's name, and the example as the member knows it."""
    origin = example.columns[COLUMN]
    columns = {name: value for name, value in example.columns.items() if name != COLUMN}
    member_example = example.model_copy(
        update={
            "example_id": origin["example_id"],
            "index": origin["index"],
            "split": origin["split"],
            "columns": {**columns, **origin.get("columns", {})},
        }
    )
    return origin["name"], member_example


def _name_members(
    envs: Mapping[str, Environment] | Sequence[Environment], env_names: Sequence[str] | None
) -> dict[str, Environment]:
    members = list(envs.values()) if isinstance(envs, Mapping) else list(envs)
    if isinstance(envs, Mapping):
        names = list(envs)
    elif env_names is not None:
        names = list(env_names)
    else:
        names = [member.name or type(member).__name__ for member in members]
    if not members or len(names) != len(members):
        raise ConfigError(f"a group of {len(members)} environments was given {len(names)} names")
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise ConfigError(
            f"two members of the group have the name `{repeated[0]}`",
            hint="pass a dictionary of names to members",
        )
    return dict(zip(names, members, strict=True))


def _read_weights(
    weights: Mapping[str, float] | Sequence[float] | None, names: Sequence[str]
) -> list[float] | None:
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        unknown = [name for name in [*weights, *names] if name not in names or name not in weights]
        if unknown:
            raise ConfigError(f"every member needs exactly one weight: check `{unknown[0]}`")
        weights = [weights[name] for name in names]
    if len(weights) != len(names):
        raise ConfigError(f"a group of {len(names)} environments was given {len(weights)} weights")
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise ConfigError(f"weights must be positive numbers, got `{weight!r}`")
    return [float(weight) for weight in weights]


def _has(members: Sequence[Environment], split: Split) -> bool:
    """Return whether any member has its own examples for a split."""
    return any(member.dataset(split).split == split for member in members)


def _prefix(name: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{name}.{metric}": value for metric, value in metrics.items()}


def _rename(name: str, score: Score) -> Score:
    return Score(score.reward, _prefix(name, score.metrics), score.error)


class Mixture:
    """Interleaves members such that every prefix of the sequence contains them in proportion to their
    weights.

    The j-th example of a member is due at the moment (j + 1/2) / weight. Moments are processed in order, and
    at equal moments the earlier member comes first. The sequence ends when an example is due that its member
    no longer has. So the proportions hold until the end, and no example is repeated.

    `lengths` are the members' numbers of examples, or None for an endless member. Without weights, each
    member's weight is its number of examples, which includes all of them. If a member is endless, all weights
    are equal.
    """

    def __init__(self, lengths: Sequence[int | None], weights: Sequence[float] | None = None) -> None:
        if weights is None:
            sizes = [length for length in lengths if length is not None]
            weights = sizes if len(sizes) == len(lengths) else [1.0] * len(lengths)
        self.lengths = list(lengths)
        self.weights = [Fraction(weight) for weight in weights]
        self.length = self._length()
        self._members = array("I")
        self._positions = array("Q")
        self._due = [
            (self._moment(member, 0), member, 0) for member in range(len(lengths)) if self.weights[member]
        ]
        heapq.heapify(self._due)

    def at(self, index: int) -> tuple[int, int]:
        """Return the member and position of the example at an index below `length`."""
        while len(self._members) <= index:
            _, member, position = self._due[0]
            heapq.heapreplace(self._due, (self._moment(member, position + 1), member, position + 1))
            self._members.append(member)
            self._positions.append(position)
        return self._members[index], self._positions[index]

    def _moment(self, member: int, position: int) -> Fraction:
        return (2 * position + 1) / (2 * self.weights[member])

    def _length(self) -> int | None:
        """Count the moments before the first one without an example.

        None means that such a moment does not exist.
        """
        ends = [
            (self._moment(member, length), member)
            for member, length in enumerate(self.lengths)
            if length is not None and self.weights[member]
        ]
        if not ends:
            return None if any(self.weights) else 0
        moment, last = min(ends)
        count = 0
        for member, weight in enumerate(self.weights):
            # Moments (2j + 1) / (2w) before `moment`, or equal to it if this member comes first.
            bound = moment * weight - Fraction(1, 2)
            whole = math.ceil(bound)
            count += whole + 1 if bound == whole and member < last else whole
        return count

"""Combines several rubrics into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from wander.errors import ConfigError
from wander.parsers import Parser
from wander.rubrics.rubric import Rubric
from wander.rubrics.score import Score
from wander.types import RewardFunctionInfo, State


class RubricGroup(Rubric):
    """Scores with every member and adds up their rewards. Each member keeps its own parser.

    If two members have functions of the same name, these are reported with the member's name as a prefix
    (`style.length`, `facts.length`), so that no two values are combined under one name. Members are named by
    the keys of a mapping, or by their position from 1. Functions added to the group itself come last and keep
    their names.
    """

    def __init__(self, rubrics: Sequence[Rubric] | Mapping[str, Rubric]) -> None:
        if isinstance(rubrics, Mapping):
            members = dict(rubrics)
        else:
            members = {str(position): rubric for position, rubric in enumerate(rubrics, start=1)}
        if not members:
            raise ConfigError("a rubric group needs at least one rubric")
        super().__init__(parser=next((rubric.parser for rubric in members.values() if rubric.parser), None))
        self.members = members

    def describe(self) -> list[RewardFunctionInfo]:
        """Return the name and weight of every function, member by member, under their reported names."""
        names = self._reported()
        return [info.model_copy(update={"name": names[key, info.name]}) for key, info in self._pairs()]

    @property
    def has_group_functions(self) -> bool:
        """Whether any function scores whole groups."""
        members = self.members.values()
        return super().has_group_functions or any(member.has_group_functions for member in members)

    async def score(self, state: State, parser: Parser | None = None) -> Score:
        """Score with every member, even if one of them failed."""
        own_score = await super().score(state, parser)
        scores = {key: await member.score(state, parser) for key, member in self.members.items()}
        return self._merge_scores({**scores, "": own_score})

    async def score_group(self, states: Sequence[State], parser: Parser | None = None) -> list[Score]:
        """Score a whole group with every member, even if one of them failed."""
        own_scores = await super().score_group(states, parser)
        scores = {key: await member.score_group(states, parser) for key, member in self.members.items()}
        scores[""] = own_scores
        return [
            self._merge_scores({key: member_scores[position] for key, member_scores in scores.items()})
            for position in range(len(states))
        ]

    async def close(self) -> None:
        """Close every member."""
        for member in self.members.values():
            await member.close()

    def _pairs(self) -> list[tuple[str, RewardFunctionInfo]]:
        """Return every function with its member's name, which is empty for the group's own functions."""
        described = [(key, info) for key, member in self.members.items() for info in member.describe()]
        return [*described, *(("", info) for info in super().describe())]

    def _reported(self) -> dict[tuple[str, str], str]:
        """Return the reported name of each (member, function)."""
        pairs = [(key, info.name) for key, info in self._pairs()]
        count = Counter(name for _, name in pairs)
        return {(key, name): f"{key}.{name}" if key and count[name] > 1 else name for key, name in pairs}

    def _merge_scores(self, scores: Mapping[str, Score]) -> Score:
        names = self._reported()
        merged = Score(reward=0.0)
        for key, score in scores.items():
            merged.error = merged.error or score.error
            for name, value in score.metrics.items():
                # A member that overrides `score` may report functions that it does not describe.
                reported = names.get((key, name), f"{key}.{name}" if name in merged.metrics else name)
                merged.metrics[reported] = value
        rewards = [score.reward for score in scores.values() if score.reward is not None]
        complete = merged.error is None and len(rewards) == len(scores)
        merged.reward = sum(rewards) if complete else None
        return merged

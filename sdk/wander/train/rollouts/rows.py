"""Rows: the tokens that the policy saw and sampled in a rollout, with its reward.

A rollout is a single sequence of tokens as long as each turn continues the previous one. If the chat template
rewrites history, or a turn is sampled from a shortened history, it consists of several sequences. A row
contains all sequences that share a reward. They also share the advantage. Every sampled token is learned
once, in the context in which it was sampled.

A trainer gets a row as a single line of tokens, with its sequences one after another. Each sequence is
computed separately (`wander.train.rollouts.buckets`), so a loss does not depend on the number of sequences in
a rollout.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from wander.seeding import derived_rng
from wander.types import AGENT, Rollout, TurnTokens
from wander.wire.run_record import read_sub_calls


@dataclass(frozen=True)
class Trajectory:
    """A sequence of tokens that the policy saw and sampled: a rollout or a part of it."""

    prompt_ids: list[int]
    completion_ids: list[int]
    """Token ids after the first prompt, including the environment's tokens."""
    mask: list[int]
    """Mask of `completion_ids`: 1 for a token of the policy, 0 for a token of the environment."""
    logprobs: list[float]
    """Log-probability with which each policy token was sampled; 0.0 for the environment's tokens."""

    @property
    def length(self) -> int:
        """Number of tokens, with the prompt."""
        return len(self.prompt_ids) + len(self.completion_ids)

    @property
    def longest_turn(self) -> int:
        """Number of tokens that the policy sampled at once."""
        return max((sum(turn) for _, turn in groupby(self.mask)), default=0)


@dataclass(frozen=True)
class Row:
    """The sequences of a rollout, which share a reward."""

    sequences: list[Trajectory]
    """Sequences in the order in which they started; empty if no token was sampled."""
    reward: float | None
    """Reward; None if the rollout failed, or if too few rollouts of its group were scored."""

    @classmethod
    def of(cls, rollout: Rollout, learner: str | None = None) -> Row:
        """Return the row of a rollout, for the player `learner` if it has players."""
        sequences = trajectories_of(rollout, learner)
        reward = rollout.reward if learner is None else rollout.rewards.get(learner)
        scored = sequences and reward is not None and math.isfinite(reward)
        return cls(sequences, float(reward) if scored and reward is not None else None)

    def penalized(self, tokens: int, limit: int, *, by_turn: bool) -> Row:
        """Return the row with DAPO's soft penalty.

        The penalty grows from 0 to 1 over the last `tokens` before a limit. The limit applies to the longest
        turn if `by_turn`, otherwise to the longest sequence.
        """
        if self.reward is None or tokens == 0:
            return self
        longest = max(sequence.longest_turn if by_turn else sequence.length for sequence in self.sequences)
        return replace(self, reward=self.reward - min(1.0, max(0.0, (longest - limit + tokens) / tokens)))

    def without_tokens(self) -> Row:
        """Return the row without tokens to learn from; its reward still counts in the group's mean."""
        return replace(
            self, sequences=[replace(sequence, mask=[0] * len(sequence.mask)) for sequence in self.sequences]
        )


def draw_learner(players: Iterable[str], seed: int) -> str | None:
    """Return the player that a rollout teaches; None without players.

    The example's seed decides it, so it is the same for all rollouts of a group.
    """
    names = list(players)
    return derived_rng("learner", seed).choice(names) if names else None


def trajectories_of(rollout: Rollout, player: str | None = None) -> list[Trajectory]:
    """Join the turns of a rollout, or of one of its players, to sequences; empty if a turn has no tokens.

    The turns of an agent program include those of its further conversations. A turn continues the latest
    sequence that its context starts with. Otherwise it starts a new sequence.
    """
    turns = list(rollout.turns)
    if AGENT in rollout.info:
        turns += [turn for call in read_sub_calls(rollout) for turn in call.turns]
    own = [turn.tokens for turn in turns if turn.player == player]
    known_tokens = [tokens for tokens in own if tokens is not None]
    if len(known_tokens) != len(own):
        return []
    parts: list[tuple[list[TurnTokens], list[int]]] = []
    for turn in known_tokens:
        known = [*turn.prompt_ids, *turn.completion_ids]
        for number in reversed(range(len(parts))):
            part, ids = parts[number]
            if turn.prompt_ids[: len(ids)] == ids:
                parts[number] = ([*part, turn], known)
                break
        else:
            parts.append(([turn], known))
    return [_join_turns(part) for part, _ in parts]


def _join_turns(turns: Sequence[TurnTokens]) -> Trajectory:
    """Join turns that each continue the previous turn."""
    prompt = turns[0].prompt_ids
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for turn in turns:
        between = turn.prompt_ids[len(prompt) + len(ids) :]
        ids += [*between, *turn.completion_ids]
        mask += [0] * len(between) + [1] * len(turn.completion_ids)
        logprobs += [0.0] * len(between) + list(turn.logprobs)
    return Trajectory(prompt, ids, mask, logprobs)


def draw_one(rollout: Rollout) -> Row:
    """Return a row with one of the rollout's sequences, drawn by its seed and index.

    It is for trainers that compute a row as a single sequence.
    """
    row = Row.of(rollout, draw_learner(rollout.rewards, rollout.seed))
    if len(row.sequences) < 2:
        return row
    rng = derived_rng("sequence", rollout.seed, rollout.index, len(rollout.turns))
    return replace(row, sequences=[rng.choice(row.sequences)])


@dataclass(frozen=True)
class TokenLine:
    """The sequences of a row as one line of tokens: the first prompt, and a completion with the rest."""

    tokens: Trajectory
    later: list[tuple[int, int]]
    """Positions in the completion of the start and of the end of the prompt, for each sequence after the
    first."""


def lay_out(row: Row, end: int) -> TokenLine:
    """Return the sequences of a row one after another; the token `end` for a row without sequences."""
    first, *others = row.sequences or [Trajectory([end], [end], [0], [0.0])]
    if not others:
        return TokenLine(first, [])
    ids, mask, logprobs = list(first.completion_ids), list(first.mask), list(first.logprobs)
    later = []
    for sequence in others:
        later.append((len(ids), len(ids) + len(sequence.prompt_ids)))
        ids += [*sequence.prompt_ids, *sequence.completion_ids]
        mask += [0] * len(sequence.prompt_ids) + sequence.mask
        logprobs += [0.0] * len(sequence.prompt_ids) + sequence.logprobs
    return TokenLine(Trajectory(first.prompt_ids, ids, mask, logprobs), later)


def trl_columns(lines: Sequence[TokenLine], rewards: Sequence[float | None]) -> dict[str, Any]:
    """Return what TRL's `rollout_func` returns."""
    return {
        "prompt_ids": [line.tokens.prompt_ids for line in lines],
        "completion_ids": [line.tokens.completion_ids for line in lines],
        "logprobs": [line.tokens.logprobs for line in lines],
        "env_mask": [line.tokens.mask for line in lines],
        "environment_reward": list(rewards),
    }

"""A policy that plays every player of an environment learns as each of them, from that one's own reward."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from wander import Messages, MultiTurnEnv, Rubric, State
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.train.config import GRPOSettings
from wander.train.data import select_rows
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander.train.rollouts.rows import Row, draw_learner
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.types import Rollout, SamplingArgs, seen_by

from .conftest import PULL, opener_of, payoff

ASSIGNMENTS = [Assignment(position, index) for position in range(6) for index in range(4)]


class DuelEnv(MultiTurnEnv):
    """Two players pull levers in turns; each hears what the other's pull said."""

    players = ("left", "right")

    def env_response(self, messages: Messages, state: State) -> Messages:
        return [{"role": "user", "content": f"The other pulled. Machine {len(state.turns)}."}]


class UnevenEnv(DuelEnv):
    """Some move several times in a row, so the rollouts of a batch are out of step."""

    def next_player(self, state: State) -> str:
        return self.rng(state, len(state.turns)).choice(["left", "right"])


def duel(examples: int = 64) -> DuelEnv:
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>."} for i in range(examples)]
    return DuelEnv(rows, max_turns=4, parser=PULL, rubric=Rubric([payoff]))


def uneven() -> UnevenEnv:
    rows = [{"question": f"Machine {i}. Answer <pull>lever</pull>."} for i in range(6)]
    return UnevenEnv(rows, max_turns=6, parser=PULL, rubric=Rubric([payoff]))


def played(puller: Path, make: Callable[[], DuelEnv] = duel) -> list[Rollout]:
    loaded = load_model(puller, device="cpu")
    client = PolicyClient(loaded.model, loaded.tokenizer)
    sampling = SamplingArgs(temperature=1.0, max_tokens=12)
    source = RolloutSource(opener_of(make), client, sampling=sampling, run_seed=0)
    try:
        return source.play(ASSIGNMENTS).rollouts
    finally:
        source.close()


def test_a_rollout_is_learned_from_as_one_of_its_players(puller: Path) -> None:
    rollouts = played(puller)
    assert not any(rollout.failure for rollout in rollouts)
    learners = {rollout.example_id: draw_learner(rollout.rewards, rollout.seed) for rollout in rollouts}
    assert set(learners.values()) == {"left", "right"}
    for rollout in rollouts:
        learner = learners[rollout.example_id]
        # The same for the whole group.
        assert draw_learner(rollout.rewards, rollout.seed) == learner
        row = Row.of(rollout, learner)
        assert row.reward == rollout.rewards[str(learner)]
        own = [turn.tokens for turn in rollout.turns if turn.player == learner]
        (sequence,) = row.sequences  # a player's turns go on from each other
        assert len(own) == 2
        assert sequence.prompt_ids == own[0].prompt_ids
        sampled = [i for i, mine in zip(sequence.completion_ids, sequence.mask, strict=True) if mine]
        assert sampled == [*own[0].completion_ids, *own[1].completion_ids]
    again = played(puller)
    assert [each.completion for each in again] == [each.completion for each in rollouts]
    assert [each.turns[-1].tokens for each in again] == [each.turns[-1].tokens for each in rollouts]


def test_each_player_is_sampled_from_its_own_context(puller: Path) -> None:
    rollouts = played(puller, uneven)
    assert not [rollout.failure for rollout in rollouts if rollout.failure]
    orders = {tuple(str(turn.player) for turn in rollout.turns) for rollout in rollouts}
    assert len(orders) > 3
    for rollout in rollouts:
        for player in ("left", "right"):
            own = [turn.tokens for turn in rollout.turns if turn.player == player]
            for before, after in pairwise(own):
                known = [*before.prompt_ids, *before.completion_ids]
                assert after.prompt_ids[: len(known)] == known


def test_fine_tuning_learns_from_the_conversation_of_the_first_player(puller: Path) -> None:
    (first, *_) = rollouts = played(puller)[:1]
    (row,), _ = select_rows(rollouts)
    whole = seen_by("left", [*first.prompt, *first.completion])
    assert row["messages"] == whole[: len(row["messages"])]
    assert sum(message["role"] == "assistant" for message in row["messages"]) == 2


@pytest.mark.full
def test_self_play_raises_the_reward_of_both(puller: Path, tmp_path: Path) -> None:
    settings = GRPOSettings(
        model={"path": str(puller), "device": "cpu"},
        batch={"rollouts": 64, "group_size": 8, "rows_at_once": 64},
        sampling={"max_tokens": 12},
        schedule={"steps": 12, "learning_rate": 3e-3},
        output={"rollouts_every": 1},
    )
    train_grpo(opener_of(duel), settings, tmp_path / "run")
    entries = read_metrics(tmp_path / "run")
    first, last = (sum(entry["reward"] for entry in part) / 3 for part in (entries[:3], entries[-3:]))
    assert last > first + 0.1

"""Who plays beside the policy: scripts, a fixed model, an earlier self; the policy learns as the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from wander import Messages, MultiTurnEnv, Rubric, State
from wander.clients.base import Client, ModelRequest
from wander.errors import ConfigError, ModelError
from wander.evals.store.folder import RunFolder
from wander.models.loading import load_model
from wander.models.policy import PolicyClient
from wander.train.config import GRPOSettings
from wander.train.grpo import GRPOResult, train_grpo
from wander.train.records.files import read_evaluations, read_metrics
from wander.train.records.step_hash import STEPS, read_steps
from wander.train.rollouts.opponents import Opponents
from wander.train.rollouts.step import PlayedStep, StepPlayer
from wander.train.verify import verify_training
from wander.types import Rollout

from .conftest import PULL, opener_of, payoff


class DuelEnv(MultiTurnEnv):
    """Two pull levers; whose turn it is is drawn, so the rollouts of a batch wait for different models."""

    players = ("left", "right")

    def next_player(self, state: State) -> str:
        return self.rng(state, len(state.turns)).choice(["left", "right"]) if state.turns else "left"

    def env_response(self, messages: Messages, state: State) -> Messages:
        return [{"role": "user", "content": f"The other pulled. Machine {len(state.turns)}."}]


def best(request: ModelRequest) -> str:
    """Pull the lever that pays."""
    return "<pull>3</pull>"


def duel() -> DuelEnv:
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>."} for i in range(16)]
    return DuelEnv(rows, max_turns=4, parser=PULL, rubric=Rubric([payoff]))


def settings_for(start: Path, steps: int = 4, **sections: Any) -> GRPOSettings:
    data = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 16},
        "sampling": {"max_tokens": 8},
        "schedule": {"steps": steps, "learning_rate": 5e-3},
        "output": {"rollouts_every": 1, "checkpoint_every": 2, "fixed_prompts": 0},
    }
    return GRPOSettings.model_validate(data | sections)


def train(folder: Path, settings: GRPOSettings, **options: Any) -> GRPOResult:
    return train_grpo(opener_of(duel), settings, folder, **options)


def turns_of(rollout: Rollout, player: str) -> list[Any]:
    return [turn for turn in rollout.turns if turn.player == player]


def bits(folder: Path) -> list[tuple[str, ...]]:
    return [(line.rollouts, line.rewards, line.update) for line in read_steps(folder / STEPS)]


class Killed(Exception):
    """What ends a run after its third step."""


def die(entry: dict[str, Any]) -> None:
    if entry["step"] == 3:
        raise Killed


EARLIER = {"players": {"right": {"model": "earlier", "refresh_every": 2}}}


def test_scripted_players_are_not_learned(puller: Path, tmp_path: Path) -> None:
    spec = f"scripted:{__name__}:best"
    train(tmp_path, settings_for(puller, 1, players={"right": spec}))
    folder = RunFolder.open(tmp_path)
    rollouts = list(folder.rollouts())
    assert folder.manifest.players["right"].name == spec
    for rollout in rollouts:
        assert all(turn.message["content"] == "<pull>3</pull>" for turn in turns_of(rollout, "right"))
        assert all(turn.tokens is not None for turn in turns_of(rollout, "left"))
    (entry,) = read_metrics(tmp_path)
    assert entry["failed"] == 0
    assert entry["reward/right"] == 1.0 > entry["reward/left"]
    assert entry["turns/left"] + entry["turns/right"] == entry["turns"] == 4
    assert entry["payoff/right"] == 1.0 > entry["payoff/left"] == entry["rewards/payoff"]


@pytest.mark.full
def test_a_fixed_opponent_model_does_not_change(puller: Path, tiny: Path, tmp_path: Path) -> None:
    train(tmp_path / "frozen", settings_for(puller, 2, players={"left": "frozen"}))
    manifest = RunFolder.open(tmp_path / "frozen").manifest
    assert manifest.players["left"].weights_sha256 == manifest.model.weights_sha256
    # The untrained model is another one, of the same size.
    train(tmp_path / "path", settings_for(puller, 1, players={"right": {"model": str(tiny)}}))
    other = RunFolder.open(tmp_path / "path")
    assert other.manifest.players["right"].weights_sha256 != manifest.model.weights_sha256
    said = [turn.message["content"] for one in other.rollouts() for turn in turns_of(one, "right")]
    assert said
    assert not any(text.endswith("</pull>") for text in said)


def test_an_opponent_model_is_loaded_once(puller: Path) -> None:
    players = {"left": "frozen", "right": {"model": "earlier", "refresh_every": 1}}
    opponents = Opponents(settings_for(puller, players=players))
    loaded = load_model(puller, device="cpu")
    clients = [PolicyClient(loaded.model, loaded.tokenizer) for _ in range(3)]
    joined = [opponents.join(client) for client in clients]
    cell = opponents.join_models(clients[0], {"right": "frozen"})

    def model_of(client: Client, player: str) -> Any:
        return client.others[player].engine.sampler.model  # type: ignore[attr-defined]

    assert len({id(model_of(each, "left")) for each in joined} | {id(model_of(cell, "right"))}) == 1
    begun = model_of(joined[0], "right")
    assert {id(model_of(each, "right")) for each in joined} == {id(begun)}
    # Who plays on meets the one before; the next who begins meets the same as the first.
    name, weight = next(iter(loaded.model.named_parameters()))

    def raised() -> Iterator[tuple[str, torch.Tensor]]:
        yield name, weight.detach() + 1

    opponents.prepare(clients[0], 1, raised)
    now = model_of(joined[0], "right")
    assert now is not begun
    assert torch.equal(dict(begun.named_parameters())[name], weight)
    assert torch.equal(dict(now.named_parameters())[name], weight + 1)
    opponents.prepare(clients[1], 1, raised)
    assert [model_of(each, "right") is now for each in joined] == [True, True, False]
    opponents.prepare(clients[2], 1, raised)
    # Once nobody plays with them, weights of before make room for those that come.
    opponents.prepare(clients[0], 2, raised)
    assert model_of(joined[0], "right") is begun


@pytest.mark.full
def test_an_earlier_self_uses_weights_of_earlier_steps(puller: Path, tmp_path: Path) -> None:
    train(tmp_path / "whole", settings_for(puller, **EARLIER))
    run = tmp_path / "whole/checkpoints"
    kept = torch.load(run / "checkpoint-4/player-right.pt", weights_only=True)
    then = dict(load_model(run / "checkpoint-2", device="cpu").model.named_parameters())
    assert kept.keys() == then.keys()
    assert all(torch.equal(weight, then[name]) for name, weight in kept.items())
    assert not (run / "checkpoint-2/player-right.pt").exists()  # it was what training began with
    # Going on from a checkpoint comes to the same bits, and so does repeating the run.
    stopped = tmp_path / "stopped"
    with pytest.raises(Killed):
        train(stopped, settings_for(puller, **EARLIER), progress=die)
    train(stopped, settings_for(puller, **EARLIER), resume=True)
    assert bits(stopped) == bits(tmp_path / "whole")
    assert verify_training(stopped, opener_of(duel), steps=4).same
    # And it is somebody else than the policy itself, or than it was at first.
    train(tmp_path / "frozen", settings_for(puller, players={"right": "frozen"}))
    same = [one == other for one, other in zip(bits(tmp_path / "frozen"), bits(stopped), strict=True)]
    assert same == [True, True, False, False]


@pytest.mark.full
def test_prefetched_steps_use_the_right_earlier_self(puller: Path, tmp_path: Path) -> None:
    ahead = {"batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 16, "max_staleness": 2}}
    settings = settings_for(puller, 6, **EARLIER, **ahead)
    train(tmp_path / "whole", settings)
    with pytest.raises(Killed):
        train(tmp_path / "stopped", settings, progress=die)
    train(tmp_path / "stopped", settings, resume=True)
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


def test_a_rollout_is_learned_for_each_of_its_players(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[PlayedStep] = []
    finish = StepPlayer.finish

    def watched(self: StepPlayer, *played: Any) -> PlayedStep:
        steps.append(finish(self, *played))
        return steps[-1]

    monkeypatch.setattr(StepPlayer, "finish", watched)
    batch = {"rollouts": 32, "group_size": 4, "rows_at_once": 32, "learners": "each"}
    train(tmp_path, settings_for(puller, 1, batch=batch))
    (entry,) = read_metrics(tmp_path)
    assert entry["rollouts"] == 16  # each of them is two rows
    assert entry["failed"] == 0
    (step,) = steps
    for number, group in enumerate(step.groups):
        player = ("left", "right")[number % 2]
        for rollout, row in zip(group.rollouts, group.rows, strict=True):
            own = turns_of(rollout, player)
            assert row.reward == (rollout.rewards[player] if own else None)
            # Only what this player said is learned, so the two rows share no sampled token.
            sampled = [
                token
                for one in row.sequences
                for token, mine in zip(one.completion_ids, one.mask, strict=True)
                if mine
            ]
            assert sampled == [token for turn in own for token in turn.tokens.completion_ids]
    assert any(left.rewards != right.rewards for left, right in zip(*[iter(step.groups)] * 2, strict=True))


def test_a_refill_plays_no_more_than_a_step(puller: Path, tmp_path: Path) -> None:
    def even() -> DuelEnv:
        rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>."} for i in range(16)]
        return DuelEnv(rows, max_turns=4, parser=PULL, rubric=Rubric([lambda completion: 0.5]))

    batch = {"rollouts": 32, "group_size": 4, "rows_at_once": 32, "learners": "each"}
    train_grpo(opener_of(even), settings_for(puller, 1, batch=batch, data={"refill_rounds": 1}), tmp_path)
    (entry,) = read_metrics(tmp_path)
    assert (entry["groups_refilled"], entry["rollouts"]) == (0, 16 + 16)


def test_a_batch_that_players_cannot_share_is_rejected(puller: Path, tmp_path: Path) -> None:
    batch = {"rollouts": 12, "group_size": 4, "rows_at_once": 12, "learners": "each"}
    with pytest.raises(ConfigError, match="3 groups per process, which 2 players cannot share evenly"):
        train(tmp_path / "run", settings_for(puller, 1, batch=batch))
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_an_evaluation_cell_can_have_its_own_players(puller: Path, tmp_path: Path) -> None:
    cells = [
        {"name": "itself"},
        {"name": "script", "players": {"right": f"scripted:{__name__}:best"}},
        {"name": "start", "players": {"right": "frozen"}},
    ]
    settings = settings_for(puller, 1, evaluation={"every": 1, "examples": 8, "cells": cells})
    train(tmp_path, settings)
    found = {(one.step, one.cell): one for one in read_evaluations(tmp_path)}
    assert found[0, "itself"].reward == found[0, "start"].reward
    right = {cell: one.metrics["reward/right"] for (step, cell), one in found.items() if step == 0}
    assert right["script"] > right["itself"] == right["start"]
    assert not any(one.failed for one in found.values())


@pytest.mark.parametrize(
    ("players", "said"),
    [
        ({"middle": "frozen"}, "`DuelEnv` has no player `middle`"),
        ({"left": "frozen", "right": "earlier"}, "the policy plays none of the players of `DuelEnv`"),
    ],
)
def test_impossible_players_are_rejected(
    puller: Path, tmp_path: Path, players: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        train(tmp_path / "run", settings_for(puller, 1, players=players))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("where", ["in training", "in a cell"])
def test_unsupported_sampling_of_an_opponent_is_rejected_before_playing(
    puller: Path, tmp_path: Path, where: str
) -> None:
    short = tmp_path / "short"
    shutil.copytree(puller, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 128}))
    players = {"right": str(short)}
    cells = {"every": 1, "examples": 4, "cells": [{"name": "short", "players": players}]}
    sections = {"players": players} if where == "in training" else {"evaluation": cells}
    settings = settings_for(puller, 1, sampling={"max_tokens": 8, "compact_at": 200}, **sections)
    with pytest.raises(ModelError, match="`compact_at` is 200, but the model accepts at most 128 tokens"):
        train(tmp_path / "run", settings)
    assert (tmp_path / "run").exists() == (where == "in a cell")

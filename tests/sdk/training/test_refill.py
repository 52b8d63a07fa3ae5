"""Groups that teach nothing are replaced by other examples, and the examples follow what was learned."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from wander import Messages, MultiTurnEnv, Rubric, State
from wander.environment import LocalEnvironment
from wander.errors import ConfigError
from wander.evals.store.folder import RunFolder
from wander.handle import EnvironmentHandle
from wander.models.loading import weights_digest
from wander.seeding import derived_rng
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander.train.records.step_hash import STEPS, read_steps
from wander.train.rollouts.environments import EnvironmentChoice
from wander.train.rollouts.sampler import SAMPLER

from .conftest import PULL, BanditEnv, bandit, opener_of, payoff

FLAT = 3
"""Of so many machines all but one pay the same whatever is pulled."""


def maybe_flat(completion: Messages, info: dict[str, Any]) -> float:
    """The payoff, or the same for everybody."""
    return 0.5 if info["flat"] else payoff(completion)


def mostly_flat(examples: int = 60) -> BanditEnv:
    rows = [
        {
            "question": f"Machine {i % 7}. Answer <pull>lever</pull>.",
            "answer": "",
            "info": {"flat": i % FLAT > 0},
        }
        for i in range(examples)
    ]
    return BanditEnv(rows, max_turns=2, parser=PULL, rubric=Rubric([maybe_flat]))


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 24, "group_size": 4, "rows_at_once": 12},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 2, "learning_rate": 5e-3},
        "output": {"rollouts_every": 1},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields} if isinstance(fields, dict) else fields
    return GRPOSettings.model_validate(data)


def test_groups_without_variance_are_played_again_with_other_examples(puller: Path, tmp_path: Path) -> None:
    plain = train_grpo(opener_of(mostly_flat), settings_for(puller), tmp_path / "plain")
    refilled = train_grpo(
        opener_of(mostly_flat), settings_for(puller, data={"refill_rounds": 6}), tmp_path / "refilled"
    )
    for entry in read_metrics(tmp_path / "plain"):
        assert 0.6 < entry["groups_without_variance"] <= 1
        assert "groups_refilled" not in entry
        assert entry["rollouts"] == 24
    for entry in read_metrics(tmp_path / "refilled"):
        idle = entry["groups_without_variance"] * 6
        assert idle >= 4
        assert entry["groups_refilled"] == pytest.approx(idle), "six rounds find what is missing"
        assert entry["groups_without_variance_after"] == 0
        assert entry["groups_played"] * 4 == entry["rollouts"]
        assert 6 + idle <= entry["groups_played"] <= 6 * 7
        # The policy as it is, not the choice that is learned from: most machines pay 0.5 to everybody.
        assert entry["reward"] == pytest.approx(0.5, abs=0.2)
        assert entry["frac_reward_zero_std"] == 0
    assert refilled.rollouts > plain.rollouts == 48
    assert weights_digest(refilled.model) != weights_digest(plain.model)
    manifest = RunFolder.open(tmp_path / "refilled").manifest
    assert len(manifest.example_ids) == 60, "a refill may play any of them"


def test_groups_that_cannot_be_refilled_are_kept(puller: Path, tmp_path: Path) -> None:
    def flat() -> BanditEnv:
        env = mostly_flat()
        env.rubric = Rubric([lambda completion: 0.5])
        return env

    train_grpo(
        opener_of(flat),
        settings_for(puller, data={"refill_rounds": 2}, schedule={"steps": 1}),
        tmp_path / "run",
    )
    (entry,) = read_metrics(tmp_path / "run")
    assert (entry["groups_without_variance"], entry["groups_without_variance_after"]) == (1, 1)
    assert (entry["groups_played"], entry["groups_refilled"], entry["groups_left_out"]) == (18, 0, 0)
    assert entry["grad_norm"] == 0


CURRICULUM = {
    "refill_rounds": 2,
    "curriculum": True,
    "unseen_share": 0.6,
    "order": "shuffled",
    "pool_weights": {"solved": 0.05},
}


@pytest.mark.full
def test_a_resumed_run_refills_like_an_uninterrupted_one(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, data=CURRICULUM, schedule={"steps": 4})
    whole = train_grpo(opener_of(mostly_flat), settings, tmp_path / "whole")
    assert sum(entry["groups_refilled"] for entry in read_metrics(tmp_path / "whole")) > 4

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    part = train_grpo(opener_of(mostly_flat), settings, tmp_path / "part", progress=interrupt)
    assert part.interrupted
    (checkpoint,) = (tmp_path / "part" / "checkpoints").glob("checkpoint-*")
    state = json.loads((checkpoint / SAMPLER).read_text())
    assert state["samplers"][0]["examples"]
    resumed = train_grpo(opener_of(mostly_flat), settings, tmp_path / "part", resume=True)
    assert not resumed.interrupted
    assert weights_digest(resumed.model) == weights_digest(whole.model)
    names = ("groups_played", "groups_refilled", "reward", "tokens", "loss")
    counted = [[[e[n] for n in names] for e in read_metrics(tmp_path / run)] for run in ("whole", "part")]
    assert counted[0] == counted[1]


@pytest.mark.full  # refilled above; prefetched in test_sampling_ahead.py
def test_prefetched_steps_are_refilled_with_their_policy(puller: Path, tmp_path: Path) -> None:
    ahead = {"max_staleness": 2}
    settings = settings_for(puller, batch=ahead, data=CURRICULUM, schedule={"steps": 4})
    train_grpo(opener_of(mostly_flat), settings, tmp_path / "whole")
    entries = read_metrics(tmp_path / "whole")
    assert [entry["staleness"] for entry in entries] == [0, 1, 2, 2]
    assert min(entry["groups_refilled"] for entry in entries) > 0
    # Of the first group of every step, which some other replaced.
    kept = list(RunFolder.open(tmp_path / "whole").rollouts())[::4]
    versions = [(number, max(0, number - 2), rollout.step) for number, rollout in enumerate(kept)]
    assert all(version in (ahead_of, number) for number, ahead_of, version in versions)
    assert any(version == number > ahead_of for number, ahead_of, version in versions)

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)

    assert train_grpo(opener_of(mostly_flat), settings, tmp_path / "part", progress=interrupt).interrupted
    train_grpo(opener_of(mostly_flat), settings, tmp_path / "part", resume=True)
    hashes = [read_steps(tmp_path / run / STEPS) for run in ("whole", "part")]
    assert [line.rollouts for line in hashes[0]] == [line.rollouts for line in hashes[1]]
    assert hashes[0][-1].weights == hashes[1][-1].weights


class FailingEnv(MultiTurnEnv):
    """Fails at random: of every example's rollouts some, at some attempts; of machine 0 nearly all."""

    attempts: dict[str, int]

    def setup_state(self, state: State) -> None:
        key = f"{state.example.example_id}/{state['index']}"
        self.attempts[key] = self.attempts.get(key, 0) + 1
        hopeless = state.example.example_id == "0" and state["index"] > 0
        if hopeless or derived_rng("failure", key, self.attempts[key]).random() < 0.4:
            raise OSError("the machine is out of order")

    def env_response(self, messages: Messages, state: State) -> Messages:
        return [{"role": "user", "content": "Pull again."}]


def failing() -> FailingEnv:
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(60)]
    env = FailingEnv(rows, max_turns=2, parser=PULL, rubric=Rubric([payoff]))
    env.attempts = {}
    return env


def test_a_group_with_too_many_failed_rollouts_is_dropped(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, batch={"retries": 3}, schedule={"steps": 1})
    train_grpo(opener_of(failing), settings, tmp_path / "run")
    (entry,) = read_metrics(tmp_path / "run")
    assert entry["groups_left_out"] == 1
    assert 3 <= entry["failed"] <= 8
    assert entry["retried"] > entry["failed"]
    assert entry["frac_reward_zero_std"] < 1
    refilling = settings_for(
        puller,
        batch={"retries": 3},
        schedule={"steps": 1},
        data={"refill_rounds": 4},
    )
    train_grpo(opener_of(failing), refilling, tmp_path / "refilled")
    (entry,) = read_metrics(tmp_path / "refilled")
    assert entry["groups_left_out"] == 0
    assert entry["groups_refilled"] >= 1


MIXED = [
    {"label": "bandit", "weight": 2},
    {"name": "flat", "arguments": {"examples": 30}, "label": "flat"},
]


@asynccontextmanager
async def either(choice: EnvironmentChoice) -> AsyncIterator[EnvironmentHandle]:
    handle = LocalEnvironment(mostly_flat(**choice.arguments) if choice.name == "flat" else bandit())
    try:
        yield handle
    finally:
        await handle.close()


def test_several_environments_are_trained_on_together(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, environments=MIXED, data={"refill_rounds": 3})
    train_grpo(either, settings, tmp_path / "run")
    for entry in read_metrics(tmp_path / "run"):
        assert entry["environments/bandit/groups"] >= 4
        assert entry["environments/flat/groups"] >= 2
        played = entry["environments/bandit/groups"] + entry["environments/flat/groups"]
        assert played == entry["groups_played"]
        assert entry["environments/flat/rewards/maybe_flat"] == entry["environments/flat/reward"]
        assert "environments/bandit/rewards/payoff" in entry
        assert "environments/bandit/rewards/maybe_flat" not in entry
        assert entry["environments/flat/groups_without_variance"] > 0.4
    manifest = RunFolder.open(tmp_path / "run").manifest
    assert [(one.label, one.weight, one.examples) for one in manifest.mixture] == [
        ("bandit", 2, 44),
        ("flat", 1, 30),
    ]
    digests = [one.task_set_sha256 for one in manifest.mixture]
    assert manifest.task_set_sha256 == digests[0] != digests[1]
    again = train_grpo(either, settings, tmp_path / "again")
    assert weights_digest(again.model) == weights_digest(tmp_path / "run" / "model")


def test_two_environments_with_one_name_need_labels(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, environments=[{}, {"name": "flat"}])
    with pytest.raises(ConfigError, match="two of the environments are called"):
        train_grpo(either, settings, tmp_path / "run")

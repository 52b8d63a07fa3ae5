"""A run that is asked to stop gives up a step that takes too long, and keeps the steps before it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from wander import Messages, State
from wander.evals.store import jsonl
from wander.models.loading import load_model, weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import GRPORolloutTrainer, train_grpo
from wander.train.records.checkpoints import list_sealed_steps
from wander.train.records.files import read_metrics
from wander.train.rollouts.ahead import AHEAD, WEIGHTS, KeptStep, StepsAhead
from wander.train.rollouts.source import RolloutSource

from .conftest import BanditEnv, bandit, opener_of


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 16},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 3, "learning_rate": 5e-3, "stop_grace": 0.2},
        "output": {"rollouts_every": 0},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


def stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def hanging(may_stop: threading.Event | None = None) -> BanditEnv:
    """Return a bandit that stops the process in a rollout of the second step, which never ends.

    It waits for `may_stop` before it does so.
    """
    environment = bandit()
    answer, answers = environment.env_response, 0

    async def env_response(messages: Messages, state: State) -> Messages:
        nonlocal answers
        answers += 1
        if answers == 16 + 5:
            if may_stop is not None:
                await asyncio.to_thread(may_stop.wait)
            stop_this_process()
            await asyncio.Event().wait()
        return answer(messages, state)

    environment.env_response = env_response  # type: ignore[method-assign,assignment]
    return environment


def require_continued(run: Path, whole: Path, settings: GRPOSettings) -> None:
    """Resume a run after its first step and hold it to one that was never interrupted."""
    assert list_sealed_steps(run) == [1]
    done = train_grpo(opener_of(bandit), settings, run, resume=True)
    assert (done.steps, done.interrupted) == (3, False)
    assert weights_digest(done.model) == weights_digest(whole / "model")
    assert [entry["step"] for entry in read_metrics(run)] == [1, 2, 3]


@pytest.mark.parametrize("staleness", [pytest.param(0, marks=pytest.mark.full), 1])
def test_a_step_with_hanging_rollouts_is_abandoned(puller: Path, tmp_path: Path, staleness: int) -> None:
    settings = settings_for(puller, batch={"max_staleness": staleness})
    train_grpo(opener_of(bandit), settings, tmp_path / "whole")
    part = train_grpo(opener_of(hanging), settings, tmp_path / "part")
    assert (part.interrupted, part.steps) == (True, 1)
    assert (tmp_path / "part" / "checkpoints" / "checkpoint-1").is_dir()
    require_continued(tmp_path / "part", tmp_path / "whole", settings)


@pytest.mark.parametrize(
    ("method", "checkpoint_every"), [pytest.param("take", 0, marks=pytest.mark.full), ("save", 1)]
)
def test_a_step_played_ahead_is_played_again_with_the_same_weights(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, checkpoint_every: int
) -> None:
    """Both when the run waits for the step to learn from it, and when a checkpoint waits for it."""
    settings = settings_for(puller, batch={"max_staleness": 1}, output={"checkpoint_every": checkpoint_every})
    train_grpo(opener_of(bandit), settings, tmp_path / "whole")
    waits, waiting = getattr(StepsAhead, method), threading.Event()

    def noted(ahead: StepsAhead, *arguments: Any) -> Any:
        if ahead.player.source.client.engine.step == 1:
            waiting.set()
        return waits(ahead, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StepsAhead, method, noted)
        part = train_grpo(opener_of(lambda: hanging(waiting)), settings, tmp_path / "part")
    assert (part.interrupted, part.steps) == (True, 1)
    checkpoint = tmp_path / "part/checkpoints/checkpoint-1"
    (kept,) = jsonl.read_records(checkpoint / AHEAD, KeptStep)
    assert (kept.step, kept.version, kept.played) == (1, 0, None)
    weights = torch.load(checkpoint / WEIGHTS.format(1), weights_only=True)
    initial = dict(load_model(str(puller), device="cpu").model.named_parameters())
    assert all(torch.equal(weights[name], initial[name]) for name in initial)
    require_continued(tmp_path / "part", tmp_path / "whole", settings)


@pytest.mark.full
@pytest.mark.parametrize("staleness", [0, 1])
def test_a_step_with_a_slow_update_is_abandoned(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, staleness: int
) -> None:
    settings = settings_for(puller, batch={"max_staleness": staleness})
    train_grpo(opener_of(bandit), settings, tmp_path / "whole")
    compute = GRPORolloutTrainer._compute_loss

    def slow(trainer: Any, *arguments: Any) -> Any:
        if trainer.state.global_step == 1:
            stop_this_process()
            while True:
                time.sleep(0.01)
        return compute(trainer, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GRPORolloutTrainer, "_compute_loss", slow)
        part = train_grpo(opener_of(bandit), settings, tmp_path / "part")
    assert (part.interrupted, part.steps) == (True, 1)
    require_continued(tmp_path / "part", tmp_path / "whole", settings)


def test_rollouts_without_requests_are_idle(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the step is given up before its time: nothing but an environment is waited for."""
    monkeypatch.setattr("wander.train.hugging_face_trainer.IDLE_SECONDS", 0.3)
    seen: list[float] = []
    idle = RolloutSource.idle_seconds

    def noted(source: RolloutSource) -> float:
        seen.append(idle(source))
        return seen[-1]

    monkeypatch.setattr(RolloutSource, "idle_seconds", noted)
    settings = settings_for(puller, schedule={"stop_grace": 10_000.0})
    part = train_grpo(opener_of(hanging), settings, tmp_path / "part")
    assert (part.interrupted, part.steps) == (True, 1)
    assert seen[-1] >= 0.3

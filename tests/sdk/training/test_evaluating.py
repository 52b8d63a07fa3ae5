"""Evaluation between the steps of a run, on a two-turn bandit whose payoffs are an argument."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from wander import Messages, Rubric, SamplingArgs, State
from wander.environment import LocalEnvironment
from wander.errors import ConfigError
from wander.evals.exhaustive import WalkPlan, WalkResult, walk
from wander.models.client import TransformersClient
from wander.models.loading import load_model, weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import GRPOResult, train_grpo
from wander.train.records.checkpoints import read_saved
from wander.train.records.files import CellEvaluation, read_best, read_evaluations, read_metrics, read_outcome
from wander.train.rollouts.environments import EnvironmentChoice
from wander.wire import EnvironmentPin

from .conftest import PULL, BanditEnv, bandit, payoff

CELLS = [{"name": "short", "examples": 6}, {"name": "long", "arguments": {"examples": 16}}]


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "environment": {"arguments": {"examples": 8}},
        "batch": {"rollouts": 16, "group_size": 8, "rows_at_once": 16},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 4, "learning_rate": 5e-3},
        "evaluation": {"every": 2, "examples": 12, "cells": CELLS},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


class Openings:
    """Opens bandits and remembers what was asked for."""

    def __init__(self, make: Callable[..., BanditEnv] = bandit) -> None:
        self.make = make
        self.asked: list[EnvironmentChoice] = []
        self.closed = 0

    @contextlib.asynccontextmanager
    async def __call__(self, choice: EnvironmentChoice) -> AsyncIterator[LocalEnvironment]:
        self.asked.append(choice)
        handle = LocalEnvironment(self.make(**choice.arguments))
        try:
            yield handle
        finally:
            await handle.close()
            self.closed += 1


def train(folder: Path, settings: GRPOSettings, **given: Any) -> GRPOResult:
    return train_grpo(given.pop("opener", Openings()), settings, folder, **given)


def untimed(evaluations: list[CellEvaluation]) -> list[dict[str, Any]]:
    return [one.model_dump(exclude={"seconds"}) for one in evaluations]


@pytest.fixture(scope="module")
def evaluated(puller: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with two cells and the best of one of them."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    train(folder, settings_for(puller, output={"keep_best": "long/payoff"}))
    return folder


def test_evaluations_run_at_the_start_at_intervals_and_at_the_end(puller: Path, tmp_path: Path) -> None:
    openings = Openings()
    train(tmp_path / "run", settings_for(puller, schedule={"steps": 3}), opener=openings)
    lines = [(line.step, line.cell) for line in read_evaluations(tmp_path / "run")]
    assert lines == [(step, cell) for step in (0, 2, 3) for cell in ("short", "long")]
    assert [choice.arguments for choice in openings.asked] == [
        {"examples": 8},
        {"examples": 8},
        {"examples": 16},
    ]
    assert openings.closed == len(openings.asked)


def test_every_cell_records_means_and_intervals(evaluated: Path) -> None:
    lines = read_evaluations(evaluated)
    assert [(line.step, line.cell) for line in lines] == [
        (step, cell) for step in (0, 2, 4) for cell in ("short", "long")
    ]
    assert [line.examples for line in lines[:2]] == [6, 12]
    assert len({line.task_set_sha256 for line in lines}) == 2, "each cell plays the same examples each time"
    for line in lines:
        assert set(line.metrics) == {"payoff", "well_formed"}
        assert line.reward == pytest.approx(line.metrics["payoff"])
        assert line.interval is not None
        assert line.interval[0] <= (line.reward or 0.0) <= line.interval[1]
        assert line.failed == 0
        assert line.tokens > 0


def test_evaluation_results_are_in_the_metrics_of_their_step(evaluated: Path) -> None:
    entries = read_metrics(evaluated)
    by_step = {(line.step, line.cell): line for line in read_evaluations(evaluated)}
    assert ["evaluation/long/payoff" in entry for entry in entries] == [False, True, False, True]
    assert entries[1]["evaluation/short/reward"] == by_step[2, "short"].reward
    assert entries[1]["seconds/evaluation"] > 0
    assert all(entry["seconds/step"] > entry["seconds/update"] > 0 for entry in entries)


def test_evaluation_does_not_change_training(puller: Path, evaluated: Path, tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", settings_for(puller, evaluation={"every": 0}))
    assert weights_digest(plain.model) == weights_digest(evaluated / "model")
    assert not (tmp_path / "plain" / "evaluations.jsonl").exists()
    for ours, theirs in zip(read_metrics(evaluated), read_metrics(tmp_path / "plain"), strict=True):
        for name in ("loss", "grad_norm", "reward", "entropy", "tokens"):
            assert ours[name] == theirs[name], name


def test_the_best_weights_are_kept_with_their_step(puller: Path, evaluated: Path) -> None:
    best = read_best(evaluated)
    assert best is not None
    payoffs = {
        line.step: line.metrics["payoff"] for line in read_evaluations(evaluated) if line.cell == "long"
    }
    assert best.value == max(payoffs.values())
    assert best.step == min(step for step, value in payoffs.items() if value == best.value)
    assert best.weights_sha256 == weights_digest(evaluated / "best")
    assert best.weights_sha256 in {one.weights_sha256 for one in read_saved(evaluated)}
    load_model(evaluated / "best", device="cpu")
    outcome = read_outcome(evaluated)
    assert outcome is not None
    assert (outcome.steps, outcome.finished, outcome.stopped, outcome.best) == (4, True, None, best)


def test_the_best_can_be_the_lowest_value(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, output={"keep_best": "long/payoff", "best_mode": "min"})
    result = train(tmp_path / "run", settings)
    payoffs = [one.metrics["payoff"] for one in read_evaluations(tmp_path / "run") if one.cell == "long"]
    assert result.best is not None
    assert result.best.value == min(payoffs)


@pytest.mark.full
@pytest.mark.parametrize("interrupted_at", [1, 2])
def test_a_run_resumed_near_an_evaluation_equals_an_uninterrupted_one(
    puller: Path, evaluated: Path, tmp_path: Path, interrupted_at: int
) -> None:
    settings = settings_for(puller, output={"keep_best": "long/payoff"})
    folder = tmp_path / "run"

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == interrupted_at:
            os.kill(os.getpid(), signal.SIGINT)

    part = train(folder, settings, progress=interrupt)
    assert part.interrupted
    outcome = read_outcome(folder)
    assert outcome is not None
    assert not outcome.finished
    resumed = train(folder, settings, resume=True)
    assert (resumed.steps, resumed.interrupted) == (4, False)
    assert weights_digest(resumed.model) == weights_digest(evaluated / "model")
    assert untimed(read_evaluations(folder)) == untimed(read_evaluations(evaluated))
    assert read_best(folder) == read_best(evaluated)
    assert weights_digest(folder / "best") == weights_digest(evaluated / "best")


@pytest.mark.full
def test_keeping_the_best_adapters_does_not_change_the_trained_ones(puller: Path, tmp_path: Path) -> None:
    lora = {"lora_rank": 2}
    kept = train(tmp_path / "kept", settings_for(puller, model=lora, output={"keep_best": "long/payoff"}))
    plain = train(tmp_path / "plain", settings_for(puller, model=lora, evaluation={"every": 0}))
    assert weights_digest(kept.model) == weights_digest(plain.model)
    merged = load_model(tmp_path / "kept" / "best", device="cpu").model
    assert not any("lora" in name for name, _ in merged.named_parameters())


def test_a_run_can_start_from_adapters_of_a_checkpoint(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(
        puller, model={"lora_rank": 2}, evaluation={"every": 0}, output={"checkpoint_every": 4}
    )
    result = train(tmp_path / "run", settings)
    checkpoint = tmp_path / "run" / "checkpoints" / "checkpoint-4"
    assert not (checkpoint / "config.json").exists(), "it holds adapters alone"
    ours = load_model(checkpoint, device="cpu").model.state_dict()
    theirs = load_model(result.model, device="cpu").model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name]) for name in ours)
    began = load_model(puller, device="cpu").model.state_dict()
    assert not all(torch.equal(ours[name], began[name]) for name in ours)


def test_a_run_stops_at_its_target(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(
        puller, schedule={"steps": 40}, evaluation={"every": 1}, stopping={"target": {"long/payoff": 0.4}}
    )
    result = train(tmp_path / "run", settings)
    assert result.stopped is not None
    assert (result.stopped.kind, result.stopped.collapsed) == ("target", False)
    assert 1 <= result.steps == result.stopped.step < 40
    assert "`long/payoff` is" in result.stopped.reason
    outcome = read_outcome(tmp_path / "run")
    assert outcome is not None
    assert outcome.stopped == result.stopped
    assert read_evaluations(tmp_path / "run")[-1].step == result.steps
    assert json.loads((tmp_path / "run" / "run.json").read_text())["ended_at"] is not None


def test_a_run_stops_when_its_policy_collapses(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(
        puller,
        schedule={"steps": 30, "learning_rate": 2e-2},
        evaluation={"every": 0},
        stopping={"collapse": True},
    )
    result = train(tmp_path / "run", settings)
    assert result.stopped is not None, "a learning rate four times too large breaks the form of its answers"
    assert (result.stopped.kind, result.stopped.collapsed) == ("collapse", True)
    assert result.steps == result.stopped.step < 30
    shares = [entry["rewards/well_formed"] for entry in read_metrics(tmp_path / "run")]
    assert max(shares[-2:]) < max(shares) - 0.3
    load_model(result.model, device="cpu")


def test_an_unknown_evaluation_metric_is_rejected_before_the_first_step(puller: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no evaluation has `long/payof`"):
        train(tmp_path / "run", settings_for(puller, output={"keep_best": "long/payof"}))
    assert read_metrics(tmp_path / "run") == []


class Unreliable(BanditEnv):
    """Fails one example always, another once."""

    failed: set[str]

    def setup_state(self, state: State) -> None:
        super().setup_state(state)
        name = str(state.example.example_id)
        if state.example.split == "eval" and name in ("2", "3"):
            if name == "3" and name in self.failed:
                return
            self.failed.add(name)
            raise OSError("out of order")


def unreliable(examples: int = 8) -> Unreliable:
    whole = bandit(examples)
    rows = [{"question": f"Machine {i}. Answer <pull>lever</pull>.", "answer": ""} for i in range(examples)]
    env = Unreliable(rows, eval_dataset=rows, max_turns=2, parser=whole.parser, rubric=whole.rubric)
    env.failed = set()
    return env


def test_a_failed_rollout_is_counted_but_not_averaged(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(
        puller, schedule={"steps": 1}, evaluation={"every": 1, "cells": [{"name": "all", "examples": 5}]}
    )
    train(tmp_path / "run", settings, opener=Openings(unreliable))
    (first, _) = read_evaluations(tmp_path / "run")
    assert (first.examples, first.failed, first.split) == (5, 1, "eval")
    assert first.reward is not None


class WeatherEnv(BanditEnv):
    """Pays 0, 1 or 2 for any pull, as it likes: nine lines from each of two openings."""

    def openings(self) -> list[dict[str, Any]]:
        return [
            {"question": f"Machine {i}. Answer <pull>lever</pull>.", "example_id": f"{i}"} for i in (0, 1)
        ]

    def env_response(self, messages: Messages, state: State) -> Messages:
        state["paid"].append(self.choose(state, [0, 1, 2], lambda: 0))
        return [{"role": "user", "content": f"It paid {state['paid'][-1]}. Pull again."}]


def won(state: State) -> bool:
    return sum(state["paid"]) > 2


def drawn(state: State) -> bool:
    return sum(state["paid"]) == 2


def lost(state: State) -> bool:
    return sum(state["paid"]) < 2


def weather(examples: int = 8) -> WeatherEnv:
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>."} for i in range(examples)]
    rubric = Rubric([payoff, won, drawn, lost], [1.0, 0.0, 0.0, 0.0])
    return WeatherEnv(rows, max_turns=3, parser=PULL, rubric=rubric)


def test_an_exhaustive_cell_plays_every_line_and_can_stop_the_run(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(
        puller,
        evaluation={"cells": [{"name": "every", "exhaustive": True}]},
        stopping={"target": {"every/bad": "<=6", "every/lost": "==6"}},
        output={"keep_best": "every/bad", "best_mode": "min"},
    )
    train(tmp_path / "run", settings, opener=Openings(weather))
    lines = read_evaluations(tmp_path / "run")
    assert [(line.step, line.cell) for line in lines] == [(0, "every"), (2, "every")]
    count = {"won": 6, "drawn": 6, "lost": 6, "unfinished": 0, "failed": 0, "invalid": 0}
    for line in lines:
        assert line.metrics == {**count, "bad": 6}
        assert (line.examples, line.lines, line.interval, line.intervals) == (2, 18, None, {})
        assert line.reward is not None
        assert line.tokens > 0
    outcome = read_outcome(tmp_path / "run")
    assert outcome is not None
    assert outcome.stopped is not None
    assert (outcome.stopped.kind, outcome.stopped.step) == ("target", 2)
    assert read_metrics(tmp_path / "run")[-1]["evaluation/every/bad"] == 6

    # The same lines as an exhaustive `wander eval` plays with the weights that were kept.
    async def walked() -> WalkResult:
        client = TransformersClient(tmp_path / "run/model", device="cpu")
        pin = EnvironmentPin(name="weather", info=weather().info)
        sampling = SamplingArgs(max_tokens=settings.sampling.max_tokens)
        plan = WalkPlan(sampling=sampling)
        return await walk(LocalEnvironment(weather()), client, plan, None, pin)

    result = asyncio.run(walked())
    assert vars(result.count) == {"lines": 18, **count}
    assert result.summary.reward_mean == pytest.approx(lines[-1].reward)


def test_an_exhaustive_cell_needs_declared_replies(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, evaluation={"cells": [{"name": "every", "exhaustive": True}]})
    with pytest.raises(ConfigError, match="declares no openings"):
        train(tmp_path / "run", settings)


@pytest.mark.parametrize(
    ("evaluation", "why"),
    [
        ({"cells": [{"name": "every", "exhaustive": True, "examples": 9}]}, "plays every line"),
        ({"cells": [{"name": "every", "exhaustive": True}], "temperature": 1.0}, "is greedy"),
    ],
)
def test_an_exhaustive_cell_is_complete_and_greedy(puller: Path, evaluation: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        settings_for(puller, evaluation=evaluation)

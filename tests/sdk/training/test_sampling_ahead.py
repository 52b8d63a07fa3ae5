"""Steps that are played while the policy learns: by which weights, corrected how, and the same each time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from token_server import token_server
from trl import GRPOTrainer
from wander import Messages, State
from wander.errors import ConfigError, RunError
from wander.evals.store.folder import RunFolder
from wander.models.loading import load_model
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander.train.records.step_hash import STEPS, read_steps
from wander.train.rollouts.ahead import AHEAD
from wander.train.settings.toml_file import check_settings
from wander.train.verify import verify_training

from .conftest import PULL, BanditEnv, bandit, opener_of

STEPS_IN_ALL = 5


class SlowBandit(BanditEnv):
    """Answers after a time that nobody knows before."""

    async def env_response(self, messages: Messages, state: State) -> Messages:  # type: ignore[override]
        await asyncio.sleep(time.monotonic_ns() % 7 / 200)
        return super().env_response(messages, state)


def slow_bandit() -> SlowBandit:
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(64)]
    return SlowBandit(rows, max_turns=2, parser=PULL, rubric=bandit().rubric)


def settings_for(start: Path, staleness: int, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 16, "group_size": 4, "rows_at_once": 16, "max_staleness": staleness},
        "sampling": {"max_tokens": 6, "temperature": 0.8},
        "schedule": {"steps": STEPS_IN_ALL, "learning_rate": 5e-3},
        "data": {"curriculum": True, "unseen_share": 0.5},
        "output": {"rollouts_every": 1, "fixed_prompts": 0},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


def steps_of(folder: Path) -> list[tuple[Any, ...]]:
    return [(line.step, line.rollouts, line.rewards, line.update) for line in read_steps(folder / STEPS)]


def logprobs_of(model: Any, tokens: Any) -> torch.Tensor:
    """Log-probabilities of the sampled tokens of a turn, at the temperature of the settings."""
    ids = torch.tensor([[*tokens.prompt_ids, *tokens.completion_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(tokens.prompt_ids) - 1 : -1]
    told = torch.log_softmax(logits / 0.8, -1)
    return told.gather(1, torch.tensor(tokens.completion_ids)[:, None])[:, 0]


def test_each_step_is_played_by_the_weights_of_its_version(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, 2, output={"checkpoint_every": 1}, data={"curriculum": False})
    train_grpo(opener_of(slow_bandit), settings, tmp_path / "run")

    versions = [0, 0, 0, 1, 2]
    assert [entry["staleness"] for entry in read_metrics(tmp_path / "run")] == [0, 1, 2, 2, 2]
    rollouts = list(RunFolder.open(tmp_path / "run").rollouts())
    assert [rollout.step for rollout in rollouts] == [version for version in versions for _ in range(4)]
    saved = {0: puller} | {n: tmp_path / f"run/checkpoints/checkpoint-{n}" for n in range(1, STEPS_IN_ALL)}
    models = {version: load_model(str(path), device="cpu").model for version, path in saved.items()}
    for number in (2 * 4, 3 * 4, 4 * 4):  # the first rollout of the steps 3, 4 and 5
        rollout, step = rollouts[number], number // 4
        tokens = rollout.turns[-1].tokens
        assert tokens is not None
        recorded = torch.tensor(tokens.logprobs)
        torch.testing.assert_close(logprobs_of(models[versions[step]], tokens), recorded, atol=1e-4, rtol=0)
        assert (logprobs_of(models[step], tokens) - recorded).abs().max() > 1e-3, (
            "the policy has learned since"
        )


def test_timing_and_stops_do_not_change_prefetching(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, 2)
    train_grpo(opener_of(slow_bandit), settings, tmp_path / "whole")

    def interrupt(entry: dict[str, Any]) -> None:
        if entry["step"] == 1:  # the step after it is the last
            os.kill(os.getpid(), signal.SIGINT)

    part = train_grpo(opener_of(slow_bandit), settings, tmp_path / "part", progress=interrupt)
    assert (part.interrupted, part.steps) == (True, 2)
    kept = (tmp_path / "part/checkpoints/checkpoint-2" / AHEAD).read_text().splitlines()
    assert [(json.loads(line)["step"], json.loads(line)["version"]) for line in kept] == [(2, 0), (3, 1)]
    train_grpo(opener_of(slow_bandit), settings, tmp_path / "part", resume=True)
    assert steps_of(tmp_path / "part") == steps_of(tmp_path / "whole")
    report = verify_training(tmp_path / "whole", opener_of(slow_bandit), steps=4)
    assert (report.same, report.compared) == (True, 4)


@pytest.mark.parametrize("correction", ["token_truncate", "sequence_truncate", "none"])
def test_stale_tokens_are_weighted_by_importance(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, correction: str
) -> None:
    seen: list[tuple[Any, ...]] = []
    whole = GRPOTrainer._compute_loss

    def looked_at(self: Any, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        real = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        with torch.no_grad():
            width = inputs["completion_ids"].shape[1]
            now, *_ = self._get_per_token_logps_and_entropies(model, ids, real, width)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        seen.append((inputs, (now - inputs["sampling_per_token_logps"]) * mask))
        return whole(self, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", looked_at)
    settings = settings_for(
        puller, 1, schedule={"steps": 3}, inference={"correction": correction, "correction_max": 1.05}
    )
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    spread = [float(difference.abs().max()) for _, difference in seen]
    assert spread[0] < 1e-4, "nothing was learned before the first step"
    assert min(spread[1:]) > 1e-2
    for inputs, difference in seen:
        if correction == "none":
            assert "importance_sampling_ratio" not in inputs
            continue
        summed = difference.sum(1, keepdim=True) if correction.startswith("sequence") else difference
        torch.testing.assert_close(inputs["importance_sampling_ratio"], summed.exp().clamp(max=1.05))


@pytest.mark.full  # above without a server; in test_vllm_server.py without prefetching
def test_a_server_samples_ahead_and_records_the_weights(puller: Path, tmp_path: Path) -> None:
    with token_server(puller) as server:

        class Spanning(BanditEnv):
            """Answers when the weights of the step before have arrived, which its rollouts then span."""

            async def env_response(self, messages: Messages, state: State) -> Messages:  # type: ignore[override]
                while len(server.digests) <= state.example.index // 4:  # noqa: ASYNC110 - of other threads
                    await asyncio.sleep(0.01)
                return super().env_response(messages, state)

        def spanning() -> Spanning:
            rows = [
                {"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(64)
            ]
            return Spanning(rows, max_turns=2, parser=PULL, rubric=bandit().rubric)

        server_engine = {"engine": "vllm-server", "url": server.url}
        settings = settings_for(puller, 2, inference=server_engine, data={"curriculum": False})
        train_grpo(opener_of(spanning), settings, tmp_path / "run")

        entries = read_metrics(tmp_path / "run")
        assert [entry["staleness"] for entry in entries] == [0, 1, 2, 2, 2]
        assert [entry["failed"] for entry in entries] == [0] * STEPS_IN_ALL
        rollouts = list(RunFolder.open(tmp_path / "run").rollouts())
        assert [rollout.step for rollout in rollouts] == [step for step in (0, 0, 0, 1, 2) for _ in range(4)]
        told = [[turn.tokens.step for turn in rollout.turns if turn.tokens] for rollout in rollouts]
        for number, (first, second) in enumerate(told):
            assert max(0, number // 4 - 2) <= (first or 0) <= number // 4 == second
        assert any(first != second for first, second in told)
        # The server had loaded so many checkpoints when it sampled, those it began with counted.
        for tokens in (turn.tokens for rollout in rollouts for turn in rollout.turns):
            assert tokens is not None
            assert tokens.step is not None
            assert (tokens.step + 1, tokens.completion_ids) in server.versions
        assert (len(server.digests), server.disturbed) == (STEPS_IN_ALL + 1, 0)
        ratios = [entry["sampling/sampling_logp_difference/max"] for entry in entries]
        assert ratios[0] < 1e-3 < min(ratios[2:]), "what was sampled with older weights is corrected for"


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        (
            {"batch": {"max_staleness": -1}},
            "`batch.max_staleness`: must be at least",
        ),
        (
            {"batch": {"max_staleness": 1}, "inference": {"engine": "vllm"}},
            "samples while the policy learns",
        ),
        (
            {"batch": {"max_staleness": 1}, "inference": {"engine": "vllm-server", "sleep": True}},
            "samples while the policy learns",
        ),
        ({"batch": {"max_staleness": 1}, "algorithm": {"num_iterations": 2}}, "cannot be used together"),
        (
            {"inference": {"engine": "vllm", "sleep": True}, "algorithm": {"num_iterations": 2}},
            "would be awake",
        ),
    ],
)
def test_unsupported_prefetching_is_rejected_before_playing(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_settings(GRPOSettings, {"model": {"path": "m"}, **sections}, "")


@pytest.mark.full
def test_an_unplayable_step_stops_the_run_and_keeps_the_weights(puller: Path, tmp_path: Path) -> None:
    class Breaking(SlowBandit):
        broken = False

        def setup_state(self, state: State) -> None:
            super().setup_state(state)
            if self.broken:
                raise ValueError("out of order")

    def broken() -> Breaking:
        rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(64)]
        return Breaking(rows, max_turns=2, parser=PULL, rubric=bandit().rubric)

    def end(entry: dict[str, Any]) -> None:
        Breaking.broken = entry["step"] >= 2

    settings = settings_for(puller, 2)
    with pytest.raises(RunError, match="all 16 rollouts of a step failed") as caught:
        train_grpo(opener_of(broken), settings, tmp_path / "run", progress=end)
    assert "wander train --resume" in str(caught.value.hint)
    Breaking.broken = False
    done = train_grpo(opener_of(broken), settings, tmp_path / "run", resume=True)
    assert done.steps == STEPS_IN_ALL
    assert max(entry["staleness"] for entry in read_metrics(tmp_path / "run")) == 2

"""A tiny policy learns from rollouts that an unmodified program plays in boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sandboxes import needs_sandbox
from wander import Rubric
from wander.boxes import Box
from wander.envs import AgentEnv
from wander.evals.store.folder import RunFolder
from wander.models.loading import weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import GRPORolloutTrainer, train_grpo
from wander.train.records.files import read_metrics
from wander.train.rollouts.rows import trajectories_of
from wander.types import State

from .conftest import PAYOFFS, opener_of

PROGRAM = """
import json, os, urllib.request

messages = [{"role": "user", "content": os.environ["WANDER_INSTRUCTION"]}]
for turn in range(2):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    pull = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    with open("/work/pulls", "a") as file:
        file.write(pull.replace("\\n", " ") + "\\n")
    messages += [
        {"role": "assistant", "content": pull},
        {"role": "user", "content": "It paid 0.0. Pull again."},
    ]
"""


class PullingProgram(AgentEnv):
    async def setup_box(self, box: Box, state: State) -> None:
        await box.upload({"/work/agent.py": PROGRAM})


async def paid(box: Box) -> float:
    """Mean payoff of the pulls in the file."""
    pulls = (await box.exec("cat pulls")).output.splitlines()
    return sum(payoff for pull in pulls for lever, payoff in enumerate(PAYOFFS) if f">{lever}<" in pull) / 2


def program() -> PullingProgram:
    rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>."} for i in range(64)]
    return PullingProgram(rows, rubric=Rubric([paid]), agent="python3 agent.py")


class Trained(GRPORolloutTrainer):
    """Notes the tokens of each row that the loss counts, and how the trainer scores them."""

    tokens: set[tuple[int, ...]] = set()  # noqa: RUF012 - read by the test
    drift: list[float] = []  # noqa: RUF012

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        counted = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
        for ids, own in zip(inputs["completion_ids"], counted, strict=True):
            self.tokens.add(tuple(ids[own].tolist()))
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        real = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        keep = inputs["completion_ids"].shape[1]
        with torch.no_grad(), self.computing(inputs):
            scored = self._get_per_token_logps_and_entropies(model, ids, real, keep)[0]
        self.drift.append(float((scored - inputs["sampling_per_token_logps"])[counted].abs().max()))
        return super()._compute_loss(model, inputs)


@needs_sandbox
@pytest.mark.full
def test_grpo_trains_on_the_tokens_that_a_programs_calls_sampled(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Trained)
    Trained.tokens, Trained.drift = set(), []
    settings = GRPOSettings.model_validate(
        {
            "model": {"path": str(puller), "device": "cpu"},
            "batch": {"rollouts": 8, "group_size": 4, "rows_at_once": 8},
            "sampling": {"max_tokens": 6},
            "schedule": {"steps": 2, "learning_rate": 5e-3},
            "output": {"rollouts_every": 1},
        }
    )
    result = train_grpo(opener_of(program), settings, tmp_path / "run")
    assert result.steps == 2
    assert weights_digest(result.model) != weights_digest(puller)
    assert [entry["failed"] for entry in read_metrics(tmp_path / "run")] == [0, 0]
    rollouts = list(RunFolder.open(tmp_path / "run").rollouts())
    assert len(rollouts) == 8  # a group of each step
    for rollout in rollouts:
        assert rollout.info["agent"]["exit_status"] == 0
        (sequence,) = trajectories_of(rollout)
        sampled = [token for turn in rollout.turns for token in turn.tokens.completion_ids]
        assert [t for t, own in zip(sequence.completion_ids, sequence.mask, strict=True) if own] == sampled
        assert tuple(sampled) in Trained.tokens
    assert len(Trained.drift) >= 2
    assert max(Trained.drift) < 1e-4

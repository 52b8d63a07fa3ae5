"""A tiny policy is trained through mini-swe-agent, which is installed from PyPI and runs in boxes."""

from __future__ import annotations

from pathlib import Path

import pytest
from sandboxes import needs_sandbox
from wander import Messages, Rubric
from wander.boxes import Box, BoxLimits, BoxSpec
from wander.boxes.programs import install
from wander.envs import AgentEnv
from wander.evals.store.folder import RunFolder
from wander.models.loading import weights_digest
from wander.models.tiny import TinySize, create_tiny
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.files import read_metrics
from wander.train.rollouts.rows import trajectories_of
from wander.types import Rollout
from wander.wire.run_record import read_sub_calls

from .conftest import opener_of
from .test_training_agents import Trained

SIZE = TinySize(
    hidden=32, layers=1, heads=2, key_value_heads=1, intermediate=64, vocabulary=600, context=8192
)
BOX = BoxSpec(limits=BoxLimits(memory_mb=3072, processes=512))


def drawn(completion: Messages) -> float:
    """A number that depends on the first answer, so that rollouts of a policy without skill differ."""
    return sum(map(ord, str(completion[0]["content"]))) % 97 / 97


async def untouched(box: Box) -> float:
    """1 if no file is left, which a policy that calls no tool does not change."""
    return float((await box.exec("ls")).output == "")


def asked() -> AgentEnv:
    rows = [{"question": f"Write {number} into a file."} for number in range(8)]
    rubric = Rubric([drawn, untouched], [1.0, 0.0])
    return AgentEnv(rows, rubric=rubric, agent="mini-swe-agent", box=BOX, max_turns=3)


@needs_sandbox
@pytest.mark.slow  # installs the program from PyPI
@pytest.mark.timeout(1800)
def test_grpo_trains_on_the_tokens_that_mini_swe_agent_asked_for(
    tmp_path: Path, transcripts: list[Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("mini-swe-agent")
    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Trained)
    Trained.tokens, Trained.drift = set(), []
    policy = create_tiny(transcripts, tmp_path / "policy", seed=0, size=SIZE)
    settings = GRPOSettings.model_validate(
        {
            "model": {"path": str(policy), "device": "cpu"},
            "batch": {"rollouts": 2, "group_size": 2, "rows_at_once": 4},
            "sampling": {"max_tokens": 12},
            "schedule": {"steps": 2, "learning_rate": 5e-3},
            "output": {"rollouts_every": 1},
        }
    )
    result = train_grpo(opener_of(asked), settings, tmp_path / "run")
    assert result.steps == 2
    assert weights_digest(result.model) != weights_digest(policy)
    assert [entry["failed"] for entry in read_metrics(tmp_path / "run")] == [0, 0]
    rollouts = list(RunFolder.open(tmp_path / "run").rollouts())
    assert len(rollouts) == 4
    for rollout in rollouts:
        check_rollout(rollout)
    assert max(Trained.drift) < 1e-4


def check_rollout(rollout: Rollout) -> None:
    """Check that the program asked until it was refused, and that the loss counted exactly its tokens.

    The program leaves out an answer that calls no tool, so each of its questions begins another conversation.
    A row of the loss contains all of them.
    """
    assert (rollout.failure, rollout.stop_reason) == (None, "max_turns_reached")
    assert rollout.info["agent"]["program"]["name"] == "mini-swe-agent"
    assert rollout.metrics["untouched"] == 1.0
    turns = [*rollout.turns, *(turn for call in read_sub_calls(rollout) for turn in call.turns)]
    sampled = [token for turn in turns for token in turn.tokens.completion_ids]
    assert len(turns) == 3
    learned = [
        token
        for sequence in trajectories_of(rollout)
        for token, own in zip(sequence.completion_ids, sequence.mask, strict=True)
        if own
    ]
    assert learned == sampled
    assert tuple(sampled) in Trained.tokens

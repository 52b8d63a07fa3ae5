"""Rollouts sampled in several sequences: every sampled token is learned once, and a rollout counts once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from wander.models.loading import load_model, weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import GRPORolloutTrainer, train_grpo
from wander.train.records.files import read_metrics
from wander.train.rollouts.rows import Row, lay_out, trajectories_of
from wander.train.rollouts.step import PlayedStep
from wander.types import Rollout, Turn, TurnTokens

from .conftest import opener_of, uneven

ROLLOUTS, GROUP, ROWS, TOKENS = 16, 8, 4, 8


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": ROLLOUTS, "group_size": GROUP, "rows_at_once": ROWS},
        "sampling": {"max_tokens": TOKENS},
        "schedule": {"steps": 1, "learning_rate": 5e-3, "max_grad_norm": 1e9},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


SHIFT = 0.3


class Watched(GRPORolloutTrainer):
    """Keeps the rollouts of the first step and its gradient; the reference is off by a known ratio."""

    steps: list[PlayedStep] = []  # noqa: RUF012 - read by the tests
    gradients: list[torch.Tensor] = []  # noqa: RUF012
    slices: list[int] = []  # noqa: RUF012

    def _play(self, slots: list[int]) -> PlayedStep:
        step = super()._play(slots)
        Watched.steps.append(step)
        return step

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if "ref_per_token_logps" in inputs:
            inputs = {**inputs, "ref_per_token_logps": inputs["ref_per_token_logps"] + SHIFT}
        Watched.slices.append(len(inputs["advantages"]))
        loss = super()._compute_loss(model, inputs)
        named = list(model.parameters())
        found = torch.autograd.grad(loss, named, retain_graph=True)
        Watched.gradients.append(torch.cat([one.flatten() for one in found]))
        return loss


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Watched)
    Watched.steps, Watched.gradients, Watched.slices = [], [], []
    return Watched


def logprobs(model: Any, turn: Turn) -> torch.Tensor:
    """Log-probabilities of what a turn sampled, after exactly what the model saw."""
    assert turn.tokens is not None
    ids = torch.tensor([[*turn.tokens.prompt_ids, *turn.tokens.completion_ids]])
    logits = model(ids).logits[0, len(turn.tokens.prompt_ids) - 1 : -1]
    told = torch.log_softmax(logits, -1)
    return told.gather(1, torch.tensor(turn.tokens.completion_ids)[:, None])[:, 0]


def gradient_by_hand(start: Path, step: PlayedStep, loss: str, kl: float) -> torch.Tensor:
    """The gradient of a step, turn by turn: at a ratio of 1 each token pushes by its rollout's advantage."""
    model = load_model(start, device="cpu").model
    tokens = sum(len(t.tokens.completion_ids) for r in step.rollouts for t in r.turns if t.tokens)
    total = torch.zeros(())
    for number, rollout in enumerate(step.rollouts):
        own = [logprobs(model, turn) for turn in rollout.turns]
        rewards = [each.reward for each in step.groups[number // GROUP].rollouts]
        advantage = rollout.reward - sum(rewards) / GROUP  # type: ignore[operator, arg-type]
        push = -advantage - kl * SHIFT  # of the divergence, unbiased by the ratio
        count = sum(map(len, own))
        divisor = {
            "dapo": tokens,
            "cispo": tokens,
            "dr_grpo": ROLLOUTS * TOKENS,
        }.get(loss, ROLLOUTS * count)
        total = total + push * torch.stack([one.sum() for one in own]).sum() / divisor
    found = torch.autograd.grad(total, list(model.parameters()))
    return torch.cat([one.flatten() for one in found])


@pytest.mark.parametrize(
    ("loss", "kl"),
    [
        *[(loss, 0.0) for loss in ("dapo", "gspo")],
        *[pytest.param(loss, 0.0, marks=pytest.mark.full) for loss in ("grpo", "dr_grpo", "cispo", "sapo")],
        ("grpo", 0.2),
        pytest.param("dapo", 0.2, marks=pytest.mark.full),
    ],
)
def test_the_gradient_uses_every_turn_in_its_context(
    forgetful: Path, tmp_path: Path, watched: type[Watched], loss: str, kl: float
) -> None:
    settings = settings_for(forgetful, algorithm={"loss": loss, "kl": kl})
    train_grpo(opener_of(uneven), settings, tmp_path / "run")

    (step,) = watched.steps
    counts = [len(row.sequences) for row in step.rows]
    assert counts == [len(rollout.turns) for rollout in step.rollouts], "each turn is a sequence"
    assert set(counts) == {1, 2, 3}
    assert watched.slices == [ROWS] * (ROLLOUTS // ROWS), "a row of the trainer is a rollout"
    (entry,) = read_metrics(tmp_path / "run")
    assert entry["sequences"] == pytest.approx(sum(counts) / ROLLOUTS)
    expected = gradient_by_hand(forgetful, step, loss, kl)
    found = torch.stack(watched.gradients).sum(0)  # every slice is divided for the whole step
    assert float(expected.abs().max()) > 1e-3
    assert float((found - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def rollout_of(*turns: tuple[list[int], list[int]]) -> Rollout:
    return Rollout(
        example_id="0",
        index=0,
        seed=0,
        prompt=[],
        completion=[],
        turns=[
            Turn(
                message={"role": "assistant", "content": ""},
                context_messages=0,
                tokens=TurnTokens(prompt_ids=seen, completion_ids=said, logprobs=[-1.0] * len(said)),
            )
            for seen, said in turns
        ],
        reward=1.0,
    )


def test_a_turn_continues_the_sequence_of_its_context() -> None:
    # Two conversations in turns, the first of which is rewritten at its third turn.
    rollout = rollout_of(
        ([1, 2], [3]), ([7, 8], [9]), ([1, 2, 3, 4], [5]), ([7, 8, 9, 10], [11]), ([1, 2, 4], [6])
    )
    found = [(one.prompt_ids, one.completion_ids, one.mask) for one in trajectories_of(rollout)]
    assert found == [
        ([1, 2], [3, 4, 5], [1, 0, 1]),
        ([7, 8], [9, 10, 11], [1, 0, 1]),
        ([1, 2, 4], [6], [1]),
    ]
    line = lay_out(Row.of(rollout), 0)
    assert line.later == [(3, 5), (8, 11)]
    assert line.tokens.prompt_ids == [1, 2]
    assert line.tokens.completion_ids == [3, 4, 5, 7, 8, 9, 10, 11, 1, 2, 4, 6]
    assert line.tokens.mask == [1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1]
    assert line.tokens.logprobs == [-float(own) for own in line.tokens.mask]


def test_a_rollout_without_tokens_has_no_reward() -> None:
    assert Row.of(rollout_of()) == Row([], None)
    line = lay_out(Row.of(rollout_of()), 5)
    assert (line.tokens.prompt_ids, line.tokens.completion_ids, line.tokens.mask) == ([5], [5], [0])


def test_truncated_rollouts_are_not_learned_in_any_sequence(
    forgetful: Path, tmp_path: Path, watched: type[Watched]
) -> None:
    settings = settings_for(
        forgetful,
        sampling={"max_tokens": 3, "temperature": 3.0},
        algorithm={"mask_truncated_completions": True, "loss": "grpo"},
    )
    train_grpo(opener_of(uneven), settings, tmp_path / "run")
    (step,) = watched.steps
    assert all(rollout.truncated for rollout in step.rollouts)
    assert not torch.stack(watched.gradients).any()


@pytest.mark.full
def test_a_resumed_run_is_exact(forgetful: Path, tmp_path: Path) -> None:
    for staleness in (0, 1):
        settings = settings_for(
            forgetful,
            batch={"max_staleness": staleness},
            schedule={"steps": 4, "max_grad_norm": 1.0},
            output={"checkpoint_every": 2},
            model={"lora_rank": 2},
        )
        whole, cut = tmp_path / f"whole{staleness}", tmp_path / f"cut{staleness}"
        digest = weights_digest(train_grpo(opener_of(uneven), settings, whole).model)
        train_grpo(opener_of(uneven), settings, cut)
        again = train_grpo(opener_of(uneven), settings, cut, resume=True, checkpoint=2)
        assert weights_digest(again.model) == digest != weights_digest(forgetful)
        lines = [json.loads(line) for line in (whole / "steps.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == [1, 2, 3, 4]
        assert max(entry["sequences"] for entry in read_metrics(whole)) > 1

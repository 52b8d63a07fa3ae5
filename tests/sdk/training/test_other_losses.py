"""RLOO and distillation: losses and gradients against formulas written by hand, and what they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from wander.errors import ConfigError, RunError
from wander.evals.store.folder import RunFolder
from wander.models.loading import load_model, weights_digest
from wander.models.tiny import create_tiny
from wander.train.config import GRPOSettings, SFTSettings
from wander.train.grpo import TRAINERS, train_grpo
from wander.train.losses.distill import DistillTrainer
from wander.train.losses.rloo import LeaveOneOutTrainer
from wander.train.sft import train_sft

from .conftest import SIZE, bandit, opener_of, uneven
from .test_losses import ROWS, SLICES, scored_by_hand, settings_for

ENVIRONMENTS = {"in one sequence": ("puller", bandit), "in several": ("forgetful", uneven)}


def compare(model: Any, loss: torch.Tensor, expected: torch.Tensor) -> None:
    """Two losses are the same, and so are their gradients."""
    assert float(loss.detach() - expected.detach()) == pytest.approx(0, abs=1e-5)
    weights = list(model.parameters())
    ours = torch.autograd.grad(loss, weights, retain_graph=True)
    theirs = torch.autograd.grad(expected, weights)
    size = max(float(gradient.abs().max()) for gradient in theirs)
    assert size > 1e-4
    assert max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True)) < 1e-3 * size


class ComparedRLOO(LeaveOneOutTrainer):
    """Computes every slice by hand too, with an old policy that differs from the new."""

    slices: list[int] = []  # noqa: RUF012 - read by the tests

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        expected = []
        for first in range(0, len(self.step_rewards), 8):
            group = [value for value in self.step_rewards[first : first + 8] if value is not None]
            expected += [value - (sum(group) - value) / 7 for value in group]
        assert output["advantages"].tolist() == pytest.approx(expected, abs=1e-5)
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        logps, _ = scored_by_hand(model, inputs)
        whole = (logps * mask).sum(1)
        shift = 0.3 * torch.randn(len(whole), generator=torch.Generator().manual_seed(5))
        inputs = {**inputs, "old_logps": whole.detach() + shift}
        loss = super()._compute_loss(model, inputs)
        ratio, advantages = torch.exp(whole - inputs["old_logps"]), inputs["advantages"]
        clipped = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        compare(model, loss, -clipped.mean())
        self.slices.append(len(whole))
        return loss


@pytest.mark.parametrize("played", ["in one sequence", pytest.param("in several", marks=pytest.mark.full)])
def test_rloo_compares_rollouts_with_the_rest_of_their_group(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: str
) -> None:
    monkeypatch.setitem(TRAINERS, "rloo", ComparedRLOO)
    ComparedRLOO.slices = []
    start, make = ENVIRONMENTS[played]
    settings = settings_for(request.getfixturevalue(start), algorithm={"loss": "rloo"})
    train_grpo(opener_of(make), settings, tmp_path / "run")
    assert ComparedRLOO.slices == [ROWS] * SLICES


class HeldRLOO(LeaveOneOutTrainer):
    """Subtracts how far each rollout has moved from a reference that differs from the policy."""

    steps: list[float] = []  # noqa: RUF012 - read by the test

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        noise = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for weight in self.ref_model.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=noise)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        mask = output["completion_mask"] * output["tool_mask"]
        with torch.no_grad():
            own, other = (scored_by_hand(model, output)[0] for model in (self.model, self.ref_model))
        moved = ((own - other) * mask).sum(1).tolist()
        held = [(value or 0.0) - 0.7 * away for value, away in zip(self.step_rewards, moved, strict=True)]
        expected = []
        for first in range(0, len(held), 8):
            group = held[first : first + 8]
            expected += [value - (sum(group) - value) / 7 for value in group]
        assert output["advantages"].tolist() == pytest.approx(expected, abs=1e-4)
        self.steps.append(max(map(abs, moved)))
        return output


def test_rloo_subtracts_the_divergence_from_the_reward(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRAINERS, "rloo", HeldRLOO)
    HeldRLOO.steps = []
    settings = settings_for(puller, algorithm={"loss": "rloo", "kl": 0.7})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    assert len(HeldRLOO.steps) == 1
    assert HeldRLOO.steps[0] > 0.1


class ComparedDistillation(DistillTrainer):
    """Computes every slice by hand too."""

    slices: list[int] = []  # noqa: RUF012 - read by the tests

    def _compute_loss(self, student: Any, inputs: dict[str, Any], *others: Any) -> Any:
        told = super()._compute_loss(student, inputs, *others)
        total = torch.zeros(())
        for row in range(len(inputs["completion_ids"])):
            for seen, said, mask in sequences_of(inputs, row):
                ids = torch.cat([seen, said])[None]
                own, better = (
                    torch.log_softmax(model(ids).logits[0, len(seen) - 1 : -1], -1)
                    for model in (student, self.teacher_model)
                )
                total = total + (divergence(own, better, self.beta) * mask).sum()
        sampled = int(inputs["num_items_in_batch"])
        compare(student, told[0], total / sampled)
        self.slices.append(int(told[2]))
        return told


def divergence(own: torch.Tensor, better: torch.Tensor, beta: float) -> torch.Tensor:
    """1: of the policy from the teacher; 0: the other way round; 0.5: the mean of both from their mean."""
    if beta in (0, 1):
        first, second = (own, better) if beta else (better, own)
        return (first.exp() * (first - second)).sum(-1)
    middle = torch.log((own.exp() + better.exp()) / 2)
    return sum((each.exp() * (each - middle)).sum(-1) for each in (own, better)) / 2  # type: ignore[return-value]


def sequences_of(inputs: dict[str, Any], row: int) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Of each sequence of a row: what came first, what followed, and which of that the policy sampled."""
    prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
    real = inputs["completion_mask"][row].bool()
    answer, mask = inputs["completion_ids"][row][real], inputs["tool_mask"][row][real]
    later = inputs.get("later_sequences", torch.zeros(row + 1, 0, 2))[row].tolist()
    begins = [(0, 0), *(pair for pair in later if pair[0] >= 0)]
    ends = [begin for begin, _ in begins[1:]] + [len(answer)]
    return [
        (answer[begin:own] if begin else prompt, answer[own:end], mask[own:end])
        for (begin, own), end in zip(begins, ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("played", "beta"),
    [
        *(("in one sequence", 1.0), ("in several", 0.5)),
        *(pytest.param("in several", beta, marks=pytest.mark.full) for beta in (1.0, 0.0)),
    ],
)
def test_distillation_is_the_divergence_of_every_sampled_token(
    request: pytest.FixtureRequest,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    played: str,
    beta: float,
) -> None:
    monkeypatch.setitem(TRAINERS, "distill", ComparedDistillation)
    ComparedDistillation.slices = []
    start, make = ENVIRONMENTS[played]
    settings = settings_for(
        request.getfixturevalue(start),
        algorithm={"loss": "distill"},
        teacher={"path": str(tiny), "divergence": beta},
    )
    train_grpo(opener_of(make), settings, tmp_path / "run")
    assert len(ComparedDistillation.slices) == SLICES
    manifest = RunFolder.open(tmp_path / "run").manifest
    assert manifest.training["teacher"]["weights_sha256"] == weights_digest(tiny)


@pytest.fixture(scope="module")
def winner(puller: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher: the policy that pulls at random, after fine-tuning on the best lever."""
    torch.set_num_threads(1)
    answer = {"role": "assistant", "content": "<pull>3</pull>"}
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Machine {number % 7}. Answer <pull>lever</pull>."},
                *(answer, {"role": "user", "content": "It paid 1.0. Pull again."}, answer),
            ]
        }
        for number in range(16)
    ]
    settings = SFTSettings.model_validate(
        {
            "model": {"path": str(puller), "device": "cpu"},
            "schedule": {"steps": 20, "learning_rate": 5e-3},
            "batch": {"rows": 16},
        }
    )
    return train_sft(rows, settings, tmp_path_factory.mktemp("winner")).model


def distilling(student: Path, teacher: Path, **sections: Any) -> GRPOSettings:
    sections = {"schedule": {"steps": 12, "learning_rate": 5e-3}, **sections}
    return settings_for(student, algorithm={"loss": "distill"}, teacher={"path": str(teacher)}, **sections)


@pytest.mark.full  # the loss of a teacher and its digest are checked above
def test_a_policy_learns_from_a_better_teacher(puller: Path, winner: Path, tmp_path: Path) -> None:
    result = train_grpo(opener_of(bandit), distilling(puller, winner), tmp_path / "run")
    assert result.first_reward < 0.6
    assert result.final_reward > 0.9
    manifest = RunFolder.open(tmp_path / "run").manifest
    assert manifest.training["teacher"]["weights_sha256"] == weights_digest(winner)
    assert weights_digest(result.model) != weights_digest(puller)


@pytest.mark.full
def test_a_resumed_distillation_is_exact(forgetful: Path, puller: Path, winner: Path, tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    for folder, source in ((teacher, winner), (tmp_path / "other", puller)):
        loaded = load_model(source, device="cpu")
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
    settings = distilling(
        forgetful,
        teacher,
        schedule={"steps": 4},
        output={"checkpoint_every": 2},
        model={"lora_rank": 2},
        batch={"max_staleness": 1},
    )
    whole = train_grpo(opener_of(uneven), settings, tmp_path / "whole")
    train_grpo(opener_of(uneven), settings, tmp_path / "cut")
    again = train_grpo(opener_of(uneven), settings, tmp_path / "cut", resume=True, checkpoint=2)
    assert weights_digest(again.model) == weights_digest(whole.model) != weights_digest(forgetful)
    (tmp_path / "other" / "model.safetensors").replace(teacher / "model.safetensors")
    with pytest.raises(RunError, match=r"training.teacher.weights_sha256"):
        train_grpo(opener_of(uneven), settings, tmp_path / "cut", resume=True, checkpoint=2)


def test_an_unsuitable_teacher_is_rejected_before_playing(puller: Path, winner: Path, tmp_path: Path) -> None:
    other = create_tiny(
        [[{"role": "user", "content": "quite other words"}, {"role": "assistant", "content": "here"}]],
        tmp_path / "stranger",
        seed=0,
        size=SIZE,
    )
    with pytest.raises(ConfigError, match="have different vocabularies"):
        train_grpo(opener_of(bandit), distilling(puller, other), tmp_path / "run")
    pinned = distilling(puller, winner).model_dump()
    pinned["teacher"]["weights_sha256"] = "0" * 64
    with pytest.raises(ConfigError, match="changed since the run started"):
        train_grpo(opener_of(bandit), GRPOSettings.model_validate(pinned), tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        (
            {"algorithm": {"loss": "rloo"}, "batch": {"max_staleness": 1}},
            "does not support `batch.max_staleness`",
        ),
        ({"algorithm": {"loss": "rloo", "top_entropy_quantile": 0.2}}, "`algorithm.top_entropy_quantile`"),
        ({"algorithm": {"loss": "rloo", "scale_rewards": "group"}}, "supports only `scale_rewards"),
        ({"algorithm": {"loss": "distill"}}, "the loss `distill` needs `teacher.path`"),
        ({"teacher": {"path": "x"}}, "`teacher.path` is only for the loss `distill`"),
        ({"algorithm": {"loss": "distill", "kl": 0.1}, "teacher": {"path": "x"}}, "`algorithm.kl`"),
    ],
)
def test_settings_that_a_loss_ignores_are_rejected(sections: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        GRPOSettings.model_validate({"model": {"path": "m"}, **sections})

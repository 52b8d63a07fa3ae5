"""Every loss, bound and scale of the advantage against a formula written by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from wander.evals.store.folder import RunFolder
from wander.models.loading import weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import CISPO_CLIP_HIGH, GRPORolloutTrainer, grpo_config, train_grpo
from wander.train.records.files import read_metrics

from .conftest import bandit, opener_of, uneven

TOKENS = 6
ROWS, SLICES = 16, 2
"""Rows of one backward pass, and how many of them make a step."""


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": ROWS * SLICES, "group_size": 8, "rows_at_once": ROWS},
        "sampling": {"max_tokens": TOKENS},
        "schedule": {"steps": 1, "learning_rate": 5e-3},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


class Parts:
    """What the formulas are written in; (B, T) for B rows of T tokens, A of shape (B, 1)."""

    def __init__(self, inputs: dict[str, Any], logps: torch.Tensor, entropies: torch.Tensor) -> None:
        self.logps = logps
        self.entropies = entropies
        self.mask = (inputs["completion_mask"] * inputs["tool_mask"]).float()
        self.A = inputs["advantages"][:, None]
        self.ratio = torch.exp(logps - inputs["old_per_token_logps"])
        self.items = inputs["num_items_in_batch"]

    def clipped(self, ratio: torch.Tensor, low: float = 0.2, high: float = 0.2) -> torch.Tensor:
        """The pessimistic one of ratio times advantage, free and clipped; negative, as it is minimized."""
        return -torch.min(ratio * self.A, ratio.clamp(1 - low, 1 + high) * self.A)

    def row_means(self, values: torch.Tensor) -> torch.Tensor:
        """Mean over each row's own tokens, then over the rows, then over the slices of the step."""
        return ((values * self.mask).sum(1) / self.mask.sum(1)).mean() / SLICES

    def token_sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over tokens, divided by all tokens of the step."""
        return (values * self.mask).sum() / self.items


def gspo(parts: Parts) -> torch.Tensor:
    """One ratio a sequence: the geometric mean of its tokens'."""
    log_ratio = (torch.log(parts.ratio) * parts.mask).sum(1, keepdim=True) / parts.mask.sum(1, keepdim=True)
    return parts.clipped(torch.exp(log_ratio)).mean() / SLICES


def sapo(parts: Parts) -> torch.Tensor:
    """A sigmoid around ratio 1 in place of the clip, steeper where the advantage is negative."""
    temperature = torch.where(parts.A > 0, 1.0, 1.05)
    gate = torch.sigmoid(temperature * (parts.ratio - 1)) * 4 / temperature
    return parts.row_means(-gate * parts.A)


def cispo(parts: Parts) -> torch.Tensor:
    """The ratio weighs the gradient, bounded above by 5 (not by 0.2, nor by 1 + it), and has none itself."""
    weight = parts.ratio.clamp(max=5.0).detach()
    return parts.token_sum(-weight * parts.A * parts.logps)


FORMULAS: dict[str, Callable[[Parts], torch.Tensor]] = {
    "grpo": lambda parts: parts.row_means(parts.clipped(parts.ratio)),
    "dapo": lambda parts: parts.token_sum(parts.clipped(parts.ratio)),
    "bnpo": lambda parts: (parts.clipped(parts.ratio) * parts.mask).sum() / parts.mask.sum() / SLICES,
    "dr_grpo": lambda parts: (
        (parts.clipped(parts.ratio) * parts.mask).sum() / (len(parts.A) * TOKENS) / SLICES
    ),
    "cispo": cispo,
    "gspo": gspo,
    "sapo": sapo,
}


def by_its_own_tokens(parts: Parts, values: torch.Tensor) -> torch.Tensor:
    """Mean over the sampled tokens of each slice."""
    return (values * parts.mask).sum() / parts.mask.sum() / SLICES


def by_all_places(parts: Parts, values: torch.Tensor) -> torch.Tensor:
    """Sum over tokens, divided by the most that there could be."""
    return (values * parts.mask).sum() / (len(parts.A) * TOKENS) / SLICES


MEANS: dict[str, Callable[[Parts, torch.Tensor], torch.Tensor]] = {
    **dict.fromkeys(("grpo", "gspo", "sapo"), Parts.row_means),
    **dict.fromkeys(("dapo", "cispo"), Parts.token_sum),
    "bnpo": by_its_own_tokens,
    "dr_grpo": by_all_places,
}
"""How each loss adds up the KL term of its tokens."""


def weight_of(parts: Parts, loss: str) -> Any:
    """The ratio, which has a gradient: so that of the divergence is unbiased."""
    if loss != "gspo":
        return parts.ratio
    log_ratio = (torch.log(parts.ratio) * parts.mask).sum(1, keepdim=True)
    return torch.exp(log_ratio / parts.mask.sum(1, keepdim=True))


def divergence(parts: Parts, inputs: dict[str, Any], loss: str) -> torch.Tensor:
    """Schulman's estimate for each token, times its weight."""
    away = inputs["ref_per_token_logps"] - parts.logps
    values: torch.Tensor = (away.exp() - away - 1) * weight_of(parts, loss)
    return values


def scored_by_hand(model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of the completions, sequence by sequence and without any padding."""
    width = inputs["completion_ids"].shape[1]
    logps, entropies = [], []
    for row in range(len(inputs["completion_ids"])):
        prompt = inputs["prompt_ids"][row][inputs["prompt_mask"][row].bool()]
        answer = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()]
        later = inputs.get("later_sequences", torch.zeros(row + 1, 0, 2))[row].tolist()
        parts: list[torch.Tensor] = []
        begun, own = 0, 0
        for start, said in [*(pair for pair in later if pair[0] >= 0), (len(answer), 0)]:
            seen = torch.cat([prompt, answer[:own]]) if begun == 0 else answer[begun:own]
            told = answer[own:start]
            logits = model(torch.cat([seen, told])[None]).logits[0, len(seen) - 1 : -1]
            known = torch.log_softmax(logits, -1)
            scored = [known.gather(1, told[:, None])[:, 0], -(known.exp() * known).sum(-1)]
            parts.append(torch.nn.functional.pad(torch.stack(scored), (own - begun, 0)))
            begun, own = start, said
        both = torch.nn.functional.pad(torch.cat(parts, 1), (0, width - len(answer)))
        logps.append(both[0])
        entropies.append(both[1])
    return torch.stack(logps), torch.stack(entropies)


class Compared(GRPORolloutTrainer):
    """Computes every slice as the trainer does and by hand, with an old policy that differs from the new."""

    gaps: list[tuple[float, float, float]] = []  # noqa: RUF012 - read by the tests

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        noise = torch.Generator().manual_seed(5)
        shift = torch.randn(inputs["completion_ids"].shape, generator=noise)
        with torch.no_grad():
            before, _ = scored_by_hand(model, inputs)
        old = before + 0.8 * shift
        inputs = {**inputs, "old_per_token_logps": old, "sampling_per_token_logps": old}
        kl = self.settings.algorithm.kl
        if kl:
            inputs["ref_per_token_logps"] = before - 0.5 * shift.flip(0)
        loss = super()._compute_loss(model, inputs)
        logps, entropies = scored_by_hand(model, inputs)
        parts = Parts(inputs, logps, entropies)
        expected = FORMULAS[self.settings.algorithm.loss](parts)
        if kl:
            loss_name = self.settings.algorithm.loss
            expected = expected + kl * MEANS[loss_name](parts, divergence(parts, inputs, loss_name))
        if bonus := self.settings.algorithm.entropy_bonus:
            expected = expected - bonus * (entropies * parts.mask).sum() / parts.mask.sum() / SLICES
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        ours = torch.autograd.grad(loss, weights, retain_graph=True)
        theirs = torch.autograd.grad(expected, weights)
        gap = max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))
        size = max(float(gradient.abs().max()) for gradient in theirs)
        self.gaps.append((float(loss.detach() - expected.detach()), gap, size))
        return loss


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, float]]:
    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Compared)
    Compared.gaps = []
    return Compared.gaps


def require_equal(gaps: list[tuple[float, float, float]]) -> None:
    assert len(Compared.gaps) == SLICES
    for difference, gap, size in Compared.gaps:
        assert size > 1e-4
        assert abs(difference) < 1e-5
        assert gap < 1e-3 * size


PLAYED = ["in one sequence", pytest.param("in several", marks=pytest.mark.full)]


@pytest.mark.parametrize("loss", sorted(FORMULAS))
def test_every_loss_matches_its_formula(
    puller: Path, tmp_path: Path, compared: list[tuple[float, float, float]], loss: str
) -> None:
    train_grpo(opener_of(bandit), settings_for(puller, algorithm={"loss": loss}), tmp_path / "run")
    require_equal(compared)


@pytest.mark.parametrize(
    "loss",
    [
        "dapo",
        "gspo",
        *(pytest.param(loss, marks=pytest.mark.full) for loss in sorted(FORMULAS.keys() - {"dapo", "gspo"})),
    ],
)
def test_the_divergence_is_added_to_every_loss(
    puller: Path, tmp_path: Path, compared: list[tuple[float, float, float]], loss: str
) -> None:
    settings = settings_for(puller, algorithm={"loss": loss, "kl": 0.7})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    require_equal(compared)
    recorded = json.loads((tmp_path / "run" / "trl.json").read_text())
    assert recorded["config"] == "GRPOConfig"
    assert recorded["arguments"]["use_bias_correction_kl"] is True
    assert recorded["arguments"]["beta"] == 0.7


@pytest.mark.parametrize("loss", ["dapo", pytest.param("grpo", marks=pytest.mark.full)])
def test_an_entropy_bonus_is_added_to_any_loss(
    puller: Path, tmp_path: Path, compared: list[tuple[float, float, float]], loss: str
) -> None:
    algorithm = {"loss": loss, "entropy_bonus": 0.5}
    train_grpo(opener_of(bandit), settings_for(puller, algorithm=algorithm), tmp_path / "run")
    require_equal(compared)


def test_both_bounds_of_the_ratio_can_be_set(
    puller: Path,
    tmp_path: Path,
    compared: list[tuple[float, float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    formula = lambda parts: parts.token_sum(parts.clipped(parts.ratio, low=0.5, high=0.05))  # noqa: E731
    monkeypatch.setitem(FORMULAS, "dapo", formula)
    algorithm = {"clip_low": 0.5, "clip_high": 0.05}
    train_grpo(opener_of(bandit), settings_for(puller, algorithm=algorithm), tmp_path / "run")
    require_equal(compared)


def test_the_ratio_is_bounded_on_both_sides(
    puller: Path,
    tmp_path: Path,
    compared: list[tuple[float, float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def bounded(parts: Parts) -> torch.Tensor:
        free = parts.ratio.clamp(max=1.5) * parts.A
        return parts.token_sum(-torch.min(free, parts.ratio.clamp(0.8, 1.2) * parts.A))

    monkeypatch.setitem(FORMULAS, "dapo", bounded)
    settings = settings_for(puller, trl={"delta": 1.5})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    require_equal(compared)


def test_the_divergence_can_omit_the_ratio(
    puller: Path,
    tmp_path: Path,
    compared: list[tuple[float, float, float]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(f"{__name__}.weight_of", lambda parts, loss: 1.0)
    settings = settings_for(puller, algorithm={"kl": 0.7}, trl={"use_bias_correction_kl": False})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    require_equal(compared)


def of_high_entropy(parts: Parts) -> torch.Tensor:
    """The clipped loss of the fifth of the sampled tokens whose entropy was highest."""
    sampled = parts.entropies[parts.mask.bool()].detach()
    chosen = parts.mask * (parts.entropies >= torch.quantile(sampled, 0.8))
    assert 0.1 < chosen.sum() / parts.mask.sum() < 0.3
    return parts.token_sum(parts.clipped(parts.ratio) * chosen)


def near_the_policy(parts: Parts) -> torch.Tensor:
    """The clipped loss without worse rollouts that the policy has moved away from."""
    moved = -(torch.log(parts.ratio).detach() * parts.mask).sum(1, keepdim=True) / parts.mask.sum(1)[:, None]
    kept = (parts.A >= 0) | (moved <= 0.1)
    assert 0 < kept[parts.A < 0].sum() < (parts.A < 0).sum()
    return parts.token_sum(parts.clipped(parts.ratio) * kept)


@pytest.mark.parametrize("played", PLAYED)
@pytest.mark.parametrize(
    ("setting", "formula"),
    [({"top_entropy_quantile": 0.2}, of_high_entropy), ({"off_policy_mask_threshold": 0.1}, near_the_policy)],
    ids=["entropy", "moved"],
)
def test_tokens_and_rollouts_are_selected(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    compared: list[tuple[float, float, float]],
    monkeypatch: pytest.MonkeyPatch,
    setting: dict[str, float],
    formula: Callable[[Parts], torch.Tensor],
    played: str,
) -> None:
    monkeypatch.setitem(FORMULAS, "dapo", formula)
    several = played == "in several"
    start = request.getfixturevalue("forgetful" if several else "puller")
    make = uneven if several else bandit
    train_grpo(opener_of(make), settings_for(start, algorithm=setting), tmp_path / "run")
    require_equal(compared)


class Repeated(GRPORolloutTrainer):
    """Computes the second update on the same rollouts by hand, against the policy before the first."""

    earlier: list[torch.Tensor] = []  # noqa: RUF012 - read by the test
    gaps: list[float] = []  # noqa: RUF012 - read by the test

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        loss = super()._compute_loss(model, inputs)
        logps, entropies = scored_by_hand(model, inputs)
        if self.state.global_step % 2 == 0:
            self.earlier.append(logps.detach())
        else:
            parts = Parts({**inputs, "old_per_token_logps": self.earlier.pop(0)}, logps, entropies)
            assert (parts.ratio - 1).abs().max() > 0.01, "the first update moved the policy"
            self.gaps.append(float(loss.detach() - FORMULAS["dapo"](parts).detach()))
        return loss


@pytest.mark.parametrize("played", PLAYED)
def test_later_updates_use_the_sampling_policy_as_reference(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: str
) -> None:
    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Repeated)
    Repeated.earlier, Repeated.gaps = [], []
    several = played == "in several"
    start = request.getfixturevalue("forgetful" if several else "puller")
    settings = settings_for(start, algorithm={"num_iterations": 2}, schedule={"steps": 4})
    result = train_grpo(opener_of(uneven if several else bandit), settings, tmp_path / "run")
    assert len(Repeated.gaps) == 2 * SLICES
    assert max(map(abs, Repeated.gaps)) < 1e-5
    assert result.rollouts == 2 * ROWS * SLICES, "two batches for four steps"
    entries = read_metrics(tmp_path / "run")
    assert ["turns" in entry for entry in entries] == [True, False, True, False]


def test_cispo_is_not_shrunk_by_its_clip(puller: Path, tmp_path: Path) -> None:
    cispo = grpo_config(settings_for(puller, algorithm={"loss": "cispo"}), tmp_path)
    assert cispo.epsilon_high == CISPO_CLIP_HIGH == 5.0
    assert grpo_config(settings_for(puller), tmp_path).epsilon_high is None


class Scaled(GRPORolloutTrainer):
    """Keeps the advantages of a step beside its rewards."""

    kept: list[tuple[list[Any], list[float]]] = []  # noqa: RUF012 - read by the test

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self.kept.append((self.step_rewards, output["advantages"].tolist()))
        return output


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_advantages_are_rewards_minus_the_groups_mean(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: str
) -> None:
    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Scaled)
    Scaled.kept = []
    settings = settings_for(puller, algorithm={"scale_rewards": scale})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    ((rewards, advantages),) = Scaled.kept

    def deviation(values: list[float]) -> float:
        mean = sum(values) / len(values)
        return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1)) + 1e-4

    expected = []
    for first in range(0, len(rewards), 8):
        group = rewards[first : first + 8]
        divisor = {"none": 1.0, "group": deviation(group), "batch": deviation(rewards)}[scale]
        expected += [(value - sum(group) / 8) / divisor for value in group]
    assert len(rewards) == 32
    assert len(set(rewards)) > 2
    assert advantages == pytest.approx(expected, abs=1e-4)


def test_truncated_rollouts_can_be_excluded_from_the_loss(puller: Path, tmp_path: Path) -> None:
    # No answer fits into three tokens: every rollout is cut short, and nothing is left to learn from.
    for masked in (False, True):
        settings = settings_for(
            puller,
            sampling={"max_tokens": 3, "temperature": 3.0},
            algorithm={"mask_truncated_completions": masked},
        )
        run = tmp_path / str(masked)
        train_grpo(opener_of(bandit), settings, run)
        (entry,) = read_metrics(run)
        assert entry["truncated"] > 0.5
        if masked:
            assert entry["truncated"] < 1 or entry["grad_norm"] == 0
    plain, masked_model = (weights_digest(tmp_path / name / "model") for name in ("False", "True"))
    assert plain != masked_model


def test_a_rollout_ends_at_its_token_limit(puller: Path, tmp_path: Path) -> None:
    train_grpo(opener_of(bandit), settings_for(puller), tmp_path / "free")
    (free,) = read_metrics(tmp_path / "free")
    rollouts = list(RunFolder.open(tmp_path / "free").rollouts())
    first_turns = max(sum(vars(rollout.turns[0].usage).values()) for rollout in rollouts)
    settings = settings_for(puller, sampling={"max_rollout_tokens": first_turns + 2})
    train_grpo(opener_of(bandit), settings, tmp_path / "limited")
    (limited,) = read_metrics(tmp_path / "limited")
    assert free["truncated"] < 0.5 < limited["truncated"]
    assert limited["turns"] < free["turns"] == 2
    assert limited["failed"] == 0


def test_layers_computed_twice_give_the_same_weights(puller: Path, tmp_path: Path) -> None:
    plain = train_grpo(opener_of(bandit), settings_for(puller), tmp_path / "plain")
    settings = settings_for(puller, model={"gradient_checkpointing": True})
    saving = train_grpo(opener_of(bandit), settings, tmp_path / "saving")
    assert weights_digest(saving.model) == weights_digest(plain.model) != weights_digest(puller)


def test_autocast_computes_in_bfloat16_and_keeps_the_weights(
    puller: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[torch.dtype] = set()

    class Watched(GRPORolloutTrainer):
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
            layer = model.get_submodule("model.layers.0.mlp.down_proj")
            with_hook = layer.register_forward_hook(lambda layer, given, output: seen.add(output.dtype))
            loss = super()._compute_loss(model, inputs)
            with_hook.remove()
            return loss

    monkeypatch.setattr("wander.train.grpo.GRPORolloutTrainer", Watched)
    result = train_grpo(opener_of(bandit), settings_for(puller, model={"autocast": True}), tmp_path / "run")
    assert seen == {torch.bfloat16}
    (entry,) = read_metrics(tmp_path / "run")
    assert entry["grad_norm"] > 0
    assert AutoModelForCausalLM.from_pretrained(result.model, dtype="auto").dtype == torch.float32
    assert weights_digest(result.model) != weights_digest(puller)

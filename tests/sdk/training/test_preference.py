"""DPO and KTO on the very tokens that a policy sampled: rows, masks, losses by hand, learning, resumption."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from wander.errors import ConfigError, RunError
from wander.models.loading import load_model, weights_digest
from wander.models.policy import PolicyClient
from wander.models.tiny import create_tiny
from wander.train.config import DPOSettings, KTOSettings, PreferenceSettings
from wander.train.data import select_rows
from wander.train.internals import DPOInternals, KTOInternals
from wander.train.preference import collect_candidates, train_preference
from wander.train.rollouts.source import Assignment, RolloutSource
from wander.train.sft import train_sft
from wander.types import Rollout, SamplingArgs

from .conftest import SIZE, bandit, opener_of
from .test_sft import settings_for as sft_settings

KINDS = {"dpo": DPOSettings, "kto": KTOSettings}


def settings_for(kind: str, model: Path, preference: Any = None, **schedule: Any) -> PreferenceSettings:
    return KINDS[kind].model_validate(
        {
            "model": {"path": str(model), "device": "cpu"},
            "batch": {"rows": 8},
            "schedule": {"learning_rate": 2e-3, "decay": "constant", "epochs": 4, **schedule},
            "preference": preference or {},
        }
    )


def play(
    model: Path, examples: int = 16, size: int = 8, seed: int = 0, temperature: float = 1.0
) -> list[Rollout]:
    loaded = load_model(model, device="cpu")
    client = PolicyClient(loaded.model, loaded.tokenizer)
    source = RolloutSource(
        opener_of(bandit), client, sampling=SamplingArgs(temperature=temperature, max_tokens=8), run_seed=seed
    )
    try:
        asked = [Assignment(position, index) for position in range(examples) for index in range(size)]
        return source.play(asked).rollouts
    finally:
        source.close()


def rows_of(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    return select_rows(rollouts, keep_repeats=True)[0]


def test_tokens_without_text_are_kept(puller: Path) -> None:
    # At this temperature special tokens and halves of letters are sampled.
    wild = play(puller, examples=8, temperature=5.0)
    found = collect_candidates(rows_of(wild), load_model(puller, device="cpu"), 1000)
    assert found.as_sampled == len(wild)


@pytest.fixture(scope="module")
def rollouts(puller: Path) -> list[Rollout]:
    torch.set_num_threads(1)
    return play(puller)


def mean_reward(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward or 0.0 for rollout in rollouts) / len(rollouts)


def test_exactly_the_sampled_tokens_are_learned(puller: Path, rollouts: list[Rollout]) -> None:
    found = collect_candidates(rows_of(rollouts), load_model(puller, device="cpu"), 1000)
    candidates = [each for group in found.groups.values() for each in group]
    assert found.as_sampled == len(candidates) == len(rollouts)
    for rollout, each in zip(rollouts, candidates, strict=True):
        first, second = (turn.tokens for turn in rollout.turns)
        assert first is not None
        assert second is not None
        assert each.prompt == first.prompt_ids
        assert each.prompt + each.completion == second.prompt_ids + second.completion_ids
        own = [token for token, mine in zip(each.completion, each.mask, strict=True) if mine]
        assert own == first.completion_ids + second.completion_ids


LEARNING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dpo": ({"pairs_per_example": 4, "imitation": 1.0}, {"learning_rate": 2e-3, "epochs": 3}),
    "kto": ({}, {"learning_rate": 3e-4, "epochs": 2}),
}
"""Settings with which each learns the bandit."""


@pytest.mark.parametrize("kind", ["dpo", pytest.param("kto", marks=pytest.mark.full)])
def test_the_policy_learns_to_prefer_higher_rewards(
    puller: Path, rollouts: list[Rollout], tmp_path: Path, kind: str
) -> None:
    preference, schedule = LEARNING[kind]
    settings = settings_for(kind, puller, preference, **schedule)
    entries: list[dict[str, Any]] = []
    result = train_preference(rows_of(rollouts), settings, tmp_path, progress=entries.append)
    assert entries[0]["rewards/margins"] == pytest.approx(0, abs=1e-4)
    assert result.final_margin > 0.1
    assert result.as_sampled == len(rollouts)
    again = play(result.model, seed=1)
    assert mean_reward(again) > mean_reward(rollouts) + 0.12


def log_likelihoods(model: Any, ids: torch.Tensor, own: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
    """Sum of the log-probabilities of each row's own tokens, row by row and without padding."""
    found = []
    for row in range(len(ids)):
        real = int(width[row])
        logits = model(ids[row : row + 1, :real]).logits[0, :-1]
        known = torch.log_softmax(logits, -1).gather(1, ids[row, 1:real, None])[:, 0]
        found.append((known * own[row, 1:real]).sum())
    return torch.stack(found)


class Compared:
    """Computes every batch as the trainer does and by hand."""

    gaps: list[tuple[float, float, float]] = []  # noqa: RUF012 - read by the tests
    begun: Path
    imitation = 0.0

    def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> torch.Tensor:
        loss: torch.Tensor = super()._compute_loss(model, inputs, return_outputs)  # type: ignore[misc]
        first = load_model(self.begun, device="cpu").model

        def ratios(prefix: str = "") -> torch.Tensor:
            given = [inputs[f"{prefix}{name}"] for name in ("input_ids", "completion_mask", "attention_mask")]
            ids, own, width = given[0], given[1], given[2].sum(1)
            with torch.no_grad():
                before = log_likelihoods(first, ids, own, width)
            return log_likelihoods(model, ids, own, width) - before

        beta = 0.1
        if "label" in inputs:
            moved = ratios("KL_").mean().clamp(min=0).detach()
            ratio, good = ratios(), inputs["label"].bool()
            weight = torch.where(good, self.args.desirable_weight, self.args.undesirable_weight)  # type: ignore[attr-defined]
            gap = torch.where(good, ratio - moved, moved - ratio)
            expected = (weight * (1 - torch.sigmoid(beta * gap))).mean()
        else:
            chosen, rejected = ratios().chunk(2)
            expected = -torch.nn.functional.logsigmoid(beta * (chosen - rejected)).mean()
            known, own = inputs["ref_chosen_logps"], inputs["completion_mask"].chunk(2)[0]
            expected = expected - self.imitation * (chosen + known).sum() / own.sum()
        weights = [each for each in model.parameters() if each.requires_grad]
        ours = torch.autograd.grad(loss, weights, retain_graph=True)
        theirs = torch.autograd.grad(expected, weights)
        gap_size = max(float((one - other).abs().max()) for one, other in zip(ours, theirs, strict=True))
        size = max(float(gradient.abs().max()) for gradient in theirs)
        self.gaps.append((float(loss.detach() - expected.detach()), gap_size, size))
        return loss


class ComparedPairs(Compared, DPOInternals):
    pass


class ComparedVerdicts(Compared, KTOInternals):
    pass


@pytest.mark.parametrize(("kind", "imitation"), [("dpo", 0.0), ("dpo", 0.5), ("kto", 0.0)])
def test_both_losses_match_their_formulas(
    puller: Path,
    rollouts: list[Rollout],
    tmp_path: Path,
    kind: str,
    imitation: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wander.train.preference.DPOInternals", ComparedPairs)
    monkeypatch.setattr("wander.train.preference.KTOInternals", ComparedVerdicts)
    monkeypatch.setattr(Compared, "begun", puller, raising=False)
    monkeypatch.setattr(Compared, "imitation", imitation)
    Compared.gaps = []
    preference = {"imitation": imitation} if imitation else {}
    settings = settings_for(kind, puller, preference, steps=3, learning_rate=1e-2)
    train_preference(rows_of(rollouts), settings, tmp_path)
    assert len(Compared.gaps) == 3
    for difference, gap, size in Compared.gaps:
        assert size > 1e-3
        assert abs(difference) < 1e-5
        assert gap < 1e-3 * size


def test_the_reference_has_the_sampling_probabilities(
    puller: Path, rollouts: list[Rollout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[tuple[int, ...], float] = {}

    class Watched(DPOInternals):
        def _compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool) -> torch.Tensor:
            known = torch.cat([inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]])
            for ids, real, value in zip(inputs["input_ids"], inputs["attention_mask"], known, strict=True):
                seen[tuple(ids[real.bool()].tolist())] = float(value)
            return super()._compute_loss(model, inputs, return_outputs)  # type: ignore[no-any-return]

    monkeypatch.setattr("wander.train.preference.DPOInternals", Watched)
    train_preference(rows_of(rollouts), settings_for("dpo", puller, epochs=1), tmp_path)
    compared = 0
    for rollout in rollouts:
        first, second = (turn.tokens for turn in rollout.turns)
        assert first is not None
        assert second is not None
        value = seen.get((*second.prompt_ids, *second.completion_ids))
        if value is not None:
            assert value == pytest.approx(sum(first.logprobs) + sum(second.logprobs), abs=1e-3)
            compared += 1
    assert compared >= len(seen) > 10


@pytest.mark.parametrize("kind", ["dpo", pytest.param("kto", marks=pytest.mark.full)])
def test_a_resumed_run_reaches_the_same_weights(
    puller: Path, rollouts: list[Rollout], tmp_path: Path, kind: str
) -> None:
    settings = settings_for(kind, puller, steps=5, decay="linear")
    whole = train_preference(rows_of(rollouts), settings, tmp_path / "whole")

    def stop(entry: dict[str, Any]) -> None:
        if entry["step"] == 2:
            signal.raise_signal(signal.SIGINT)

    stopped = train_preference(rows_of(rollouts), settings, tmp_path / "run", progress=stop)
    assert stopped.interrupted
    assert stopped.steps < 5
    result = train_preference(rows_of(rollouts), settings, tmp_path / "run", resume=True)
    assert (result.interrupted, result.steps) == (False, 5)
    assert weights_digest(result.model) == weights_digest(whole.model) != weights_digest(puller)
    with pytest.raises(RunError, match="is already finished"):
        train_preference(rows_of(rollouts), settings, tmp_path / "run", resume=True)


def test_adapters_learn_and_are_merged(puller: Path, rollouts: list[Rollout], tmp_path: Path) -> None:
    settings = settings_for("dpo", puller)
    section = settings.model.model_copy(update={"lora_rank": 4})
    settings = settings.model_copy(update={"model": section})
    result = train_preference(rows_of(rollouts), settings, tmp_path)
    assert result.final_loss < result.first_loss
    assert weights_digest(load_model(result.model, device="cpu").path or "") != weights_digest(puller)


def test_ties_and_single_rollouts_are_skipped(puller: Path, rollouts: list[Rollout], tmp_path: Path) -> None:
    rows = rows_of(rollouts)
    alike = [{**row, "reward": 0.5} for row in rows[:8]]
    lonely = rows[8:9]
    result = train_preference([*alike, *lonely, *rows[16:24]], settings_for("dpo", puller, steps=1), tmp_path)
    assert result.rows == 1
    assert result.left_out == {"only rollout of its example": 1, "rewards do not differ enough": 2}
    with pytest.raises(ConfigError, match="no example has rollouts with different rewards") as refused:
        train_preference(alike, settings_for("dpo", puller), tmp_path / "none")
    assert "per_example = 8" in str(refused.value.hint)
    with pytest.raises(ConfigError, match="no rollout is left"):
        train_preference(alike, settings_for("kto", puller), tmp_path / "none")
    with pytest.raises(ConfigError, match="all 8 rollouts are good"):
        train_preference(alike, settings_for("kto", puller, {"good_from": 0.5}), tmp_path / "none")
    with pytest.raises(ConfigError, match="row 1 lacks `reward` or `example_id`"):
        train_preference([{"messages": rows[0]["messages"]}], settings_for("dpo", puller), tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_pairs_of_an_example_combine_best_with_worst(
    puller: Path, rollouts: list[Rollout], tmp_path: Path
) -> None:
    rows = [{**row, "reward": float(at)} for at, row in enumerate(rows_of(rollouts)[:8])]
    for asked, made in ((1, 1), (3, 3), (9, 4)):
        settings = settings_for("dpo", puller, {"pairs_per_example": asked}, steps=1)
        assert train_preference(rows, settings, tmp_path / str(asked)).rows == made
    settings = settings_for("dpo", puller, {"pairs_per_example": 9, "min_gap": 3}, steps=1)
    assert train_preference(rows, settings, tmp_path / "gap").rows == 2


def test_tokens_of_another_vocabulary_are_tokenized_again(
    puller: Path, rollouts: list[Rollout], tmp_path: Path
) -> None:
    other = create_tiny(
        [[{"role": "user", "content": "Anything else"}]] * 4, tmp_path / "other", seed=1, size=SIZE
    )
    rows = rows_of(rollouts)
    found = collect_candidates(rows, load_model(other, device="cpu"), 1000)
    assert found.as_sampled == 0
    assert sum(len(group) for group in found.groups.values()) == len(rows)
    # Nor are those of a row whose text was changed after it was played.
    changed = {**rows[0], "messages": [*rows[0]["messages"][:-1], {"role": "assistant", "content": "Other."}]}
    assert collect_candidates([changed], load_model(puller, device="cpu"), 1000).as_sampled == 0


def test_fine_tuning_learns_exactly_the_tokens_too(
    puller: Path, rollouts: list[Rollout], tmp_path: Path
) -> None:
    rows, _ = select_rows(rollouts, per_example=1)
    result = train_sft(rows, sft_settings(puller, steps=2), tmp_path / "sampled")
    assert result.as_sampled == result.rows == 16
    plain = [{key: value for key, value in row.items() if key != "sampled"} for row in rows]
    assert train_sft(plain, sft_settings(puller, steps=2), tmp_path / "laid").as_sampled == 0

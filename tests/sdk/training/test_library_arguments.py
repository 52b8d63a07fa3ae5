"""Arguments that settings hand on to TRL and PEFT, those that Wander owns, and other ways to sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from wander.errors import ConfigError, ModelNotFound
from wander.evals.store.folder import RunFolder
from wander.models.engines.weights import whole_weights
from wander.models.loading import load_model, merge_adapters
from wander.train.config import GRPOSettings, ModelSection
from wander.train.correction import RATIO
from wander.train.grpo import grpo_config, train_grpo
from wander.train.records.files import read_metrics
from wander.train.rollouts.rows import Row, Trajectory
from wander.train.weights import wrap_lora

from .conftest import bandit, opener_of
from .test_training_faults import settings_for


class Optimizers(TrainerCallback):  # type: ignore[misc]
    """Keeps the optimizer of a run."""

    optimizer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.optimizer = given["optimizer"]


def test_arguments_of_trl_reach_the_optimizer_and_the_record(puller: Path, tmp_path: Path) -> None:
    seen = Optimizers()
    given = {"weight_decay": 0.25, "adam_beta2": 0.9}
    train_grpo(opener_of(bandit), settings_for(puller, trl=given), tmp_path / "run", observers=[seen])
    assert {group["weight_decay"] for group in seen.optimizer.param_groups} == {0.0, 0.25}
    assert {group["betas"][1] for group in seen.optimizer.param_groups} == {0.9}
    recorded = json.loads((tmp_path / "run" / "trl.json").read_text())["arguments"]
    assert {name: recorded[name] for name in given} == given
    assert "output_dir" not in recorded


@pytest.mark.parametrize("argument", ["learning_rate", "beta", "report_to", "use_vllm", "generation_kwargs"])
def test_arguments_set_by_wander_are_rejected(puller: Path, tmp_path: Path, argument: str) -> None:
    with pytest.raises(ConfigError, match=rf"`trl\.{argument}`: Wander sets this argument itself"):
        grpo_config(settings_for(puller, trl={argument: 1}), tmp_path)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"weight_decays": 0.1}, "weight_decays"),
        ({"optim": "adamw_bnb_8bit"}, "bitsandbytes"),
        ({"optim": "no_such_optimizer"}, "no_such_optimizer"),
    ],
)
def test_arguments_unknown_to_trl_are_rejected(
    puller: Path, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        grpo_config(settings_for(puller, trl=given), tmp_path)
    assert says in str(refused.value)


def test_a_reference_can_follow_the_policy(puller: Path, tmp_path: Path) -> None:
    follows = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}
    for name, trl in (("follows", follows), ("stays", {})):
        settings = settings_for(puller, algorithm={"kl": 0.1}, schedule={"steps": 3}, trl=trl)
        train_grpo(opener_of(bandit), settings, tmp_path / name)
    following, staying = (read_metrics(tmp_path / name)[-1]["kl"] for name in ("follows", "stays"))
    assert following < staying
    with pytest.raises(ValueError, match="sync_ref_model"):
        settings_for(puller, model={"lora_rank": 4}, trl=follows)


@pytest.mark.parametrize("peft", [{"use_dora": True}, {"use_rslora": True}, {"lora_dropout": 0.5}])
def test_adapters_of_other_kinds_are_merged_as_they_compute(puller: Path, peft: dict[str, Any]) -> None:
    section = ModelSection(path=str(puller), device="cpu", lora_rank=4, peft=peft)
    loaded = load_model(puller, device="cpu")
    before = loaded.model(torch.tensor([[5, 6, 7, 8]])).logits
    model = wrap_lora(loaded.model, section)
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight += 0.1 * torch.randn(weight.shape, generator=noise)
    model.eval()
    expected = model(torch.tensor([[5, 6, 7, 8]])).logits
    assert (expected - before).abs().max() > 0.01
    whole = dict(whole_weights(model))
    merged = merge_adapters(model)
    torch.testing.assert_close(merged(torch.tensor([[5, 6, 7, 8]])).logits, expected, atol=1e-4, rtol=1e-4)
    for name, weight in merged.named_parameters():
        torch.testing.assert_close(whole[name], weight, atol=1e-5, rtol=1e-4)


def test_arguments_of_adapters_need_adapters(puller: Path) -> None:
    with pytest.raises(ValueError, match=r"model\.lora_rank"):
        settings_for(puller, model={"peft": {"use_dora": True}})
    section = ModelSection(path=str(puller), device="cpu", lora_rank=4, peft={"r": 8})
    with pytest.raises(ConfigError, match=r"model\.lora_rank"):
        wrap_lora(load_model(puller, device="cpu").model, section)


def test_a_policy_with_dora_trains(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, model={"lora_rank": 4, "peft": {"use_dora": True}})
    result = train_grpo(opener_of(bandit), settings, tmp_path / "run")
    assert result.steps == 2
    load_model(result.model, device="cpu")


def test_a_policy_samples_from_the_most_probable_tokens(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, sampling={"top_k": 1, "stop": ["</"]}, schedule={"steps": 1})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    assert run.manifest.sampling.given()["top_k"] == 1
    turns = [turn for rollout in run.rollouts() for turn in rollout.turns if turn.tokens is not None]
    assert turns
    assert {logprob for turn in turns for logprob in turn.tokens.logprobs} == {0.0}
    assert all(
        "</" not in str(message["content"])
        for rollout in run.rollouts()
        for message in rollout.completion
        if message["role"] == "assistant"
    )


def test_samples_of_a_part_of_the_distribution_are_corrected(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, sampling={"top_p": 0.5}, schedule={"steps": 1})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    (entry,) = read_metrics(tmp_path / "run")
    assert entry[f"{RATIO}/mean"] < 0.99


def test_tokens_near_the_limit_reduce_the_reward() -> None:
    def row(turns: list[int], reward: float | None = 1.0) -> Row:
        mask = [bit for turn in turns for bit in [1] * turn + [0]]
        return Row([Trajectory([0] * 5, [0] * len(mask), mask, [0.0] * len(mask))], reward)

    def left(turns: list[int]) -> float | None:
        return row(turns).penalized(4, 10, by_turn=True).reward

    assert [left([turn]) for turn in (6, 7, 8, 10, 12)] == [1.0, 0.75, 0.5, 0.0, 0.0]
    assert left([6, 6, 6]) == 1.0, "each turn has its own limit"
    assert row([3, 3]).penalized(4, 15, by_turn=False).reward == 0.5
    assert row([9], None).penalized(4, 10, by_turn=True).reward is None


def test_overlong_rollouts_earn_less_in_a_run(puller: Path, tmp_path: Path) -> None:
    for name, tokens in (("plain", 0), ("soft", 5)):
        sampling = {"temperature": 1.5, "overlong_tokens": tokens}
        train_grpo(opener_of(bandit), settings_for(puller, sampling=sampling), tmp_path / name)
    plain, soft = (
        (tmp_path / name / "steps.jsonl").read_text().splitlines()[0] for name in ("plain", "soft")
    )
    plain, soft = json.loads(plain), json.loads(soft)
    assert plain["rollouts"] == soft["rollouts"]
    assert plain["update"] != soft["update"]


def test_the_profiler_writes_a_trace(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, schedule={"steps": 3}, logging={"profile_steps": 1})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "profile.json").read_text())["traceEvents"]


def test_the_implementation_of_attention_can_be_chosen(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, model={"attention": "eager"}, schedule={"steps": 1})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    assert load_model(puller, device="cpu", attention="eager").model.config._attn_implementation == "eager"
    with pytest.raises(ConfigError, match="is not run"):
        load_model(puller, device="cpu", attention="kernels-community/flash-attn")
    with pytest.raises(ModelNotFound):
        load_model(puller, device="cpu", attention="no_such_attention")


def test_settings_are_json_in_the_record(puller: Path) -> None:
    settings = settings_for(puller, trl={"optim_args": "momentum=0.9"})
    assert GRPOSettings.model_validate(json.loads(json.dumps(settings.on_record()))) == settings

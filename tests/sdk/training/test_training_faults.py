"""Faults that a run must not make silently: dropout, samples of other probabilities than the trained ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM
from wander import Rubric
from wander.errors import ConfigError
from wander.models.client import TransformersClient
from wander.models.loading import load_model
from wander.rubrics import Score
from wander.train.config import DPOSettings, GRPOSettings, KTOSettings, SFTSettings
from wander.train.correction import GAP, RATIO, SHARE
from wander.train.grpo import train_grpo
from wander.train.preference import train_preference
from wander.train.records.files import read_alerts, read_metrics
from wander.train.sft import train_sft

from .conftest import PULL, BanditEnv, bandit, opener_of, payoff


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 16, "group_size": 8, "rows_at_once": 16},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 2, "learning_rate": 1e-3},
    }
    for name, fields in sections.items():
        data[name] = {**data.get(name, {}), **fields}
    return GRPOSettings.model_validate(data)


def random_model(kind: str, tokenizer: Any) -> Any:
    """Return a model whose config has dropout, as published ones do."""
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id}
    size = len(tokenizer)
    if kind == "gpt2":
        rates = {"attn_pdrop": 0.3, "embd_pdrop": 0.3, "resid_pdrop": 0.3}
        config = GPT2Config(vocab_size=size, n_positions=256, n_embd=32, n_layer=2, n_head=2, **rates, **ends)
        return GPT2LMHeadModel(config)
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=size,
            hidden_size=32,
            num_hidden_layers=2,
            ffn_dim=64,
            num_attention_heads=2,
            max_position_embeddings=256,
            word_embed_proj_dim=32,
            dropout=0.3,
            attention_dropout=0.3,
            layerdrop=0.3,
            pad_token_id=tokenizer.eos_token_id,
            **ends,
        )
    )


@pytest.fixture(params=["gpt2", "opt"])
def dropping(request: pytest.FixtureRequest, tiny: Path, tmp_path: Path) -> Path:
    tokenizer = load_model(tiny, device="cpu").tokenizer
    folder = tmp_path / request.param
    random_model(request.param, tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("loss", ["dapo", "rloo"])
def test_a_model_with_dropout_trains_with_the_probabilities_that_it_samples_with(
    dropping: Path, tmp_path: Path, loss: str
) -> None:
    train_grpo(opener_of(bandit), settings_for(dropping, algorithm={"loss": loss}), tmp_path / "run")
    for entry in read_metrics(tmp_path / "run"):
        assert entry[f"{GAP}/mean"] <= entry[f"{GAP}/max"] < 1e-4
        assert entry[SHARE] == 0
    assert "logprobs_differ" not in {alert.rule for alert in read_alerts(tmp_path / "run")}


@pytest.mark.parametrize(("kind", "first"), [(DPOSettings, 0.6931), (KTOSettings, 0.5)])
def test_preference_training_starts_with_the_reference_policy(
    dropping: Path, tmp_path: Path, kind: Any, first: float
) -> None:
    rows = [
        {
            "example_id": str(number % 4),
            "reward": float(number // 4),
            "messages": [
                {"role": "user", "content": f"Machine {number % 4}. Answer <pull>lever</pull>."},
                {"role": "assistant", "content": f"<pull>{number % 3}</pull>"},
            ],
        }
        for number in range(8)
    ]
    settings = kind(model={"path": str(dropping), "device": "cpu"}, batch={"rows": 4}, schedule={"steps": 1})
    result = train_preference(rows, settings, tmp_path / "run")
    assert result.first_loss == pytest.approx(first, abs=1e-4)


def test_active_dropout_raises_an_alert(
    dropping: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wander.train.grpo.turn_off_dropout", lambda model: None)
    train_grpo(opener_of(bandit), settings_for(dropping), tmp_path / "run")
    first, _ = read_metrics(tmp_path / "run")
    assert first[SHARE] > 0.1
    assert "logprobs_differ" in {alert.rule for alert in read_alerts(tmp_path / "run")}


@pytest.mark.parametrize("correction", ["token_truncate", "none"])
def test_samples_in_bfloat16_are_corrected_unless_that_is_turned_off(
    puller: Path, tmp_path: Path, correction: str
) -> None:
    settings = settings_for(
        puller,
        inference={"dtype": "bfloat16", "correction": correction},
    )
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    entries = read_metrics(tmp_path / "run")
    assert max(entry[f"{GAP}/max"] for entry in entries) > 1e-3
    assert {f"{RATIO}/mean" in entry for entry in entries} == {correction != "none"}


def test_turns_of_different_lengths_are_sampled_under_autocast(puller: Path, tmp_path: Path) -> None:
    settings = settings_for(puller, model={"autocast": True}, sampling={"temperature": 1.5, "max_tokens": 12})
    train_grpo(opener_of(bandit), settings, tmp_path / "run")
    for entry in read_metrics(tmp_path / "run"):
        assert entry["failed"] == 0
        assert entry["tokens"] > 0


@pytest.mark.parametrize("kind", [GRPOSettings, SFTSettings, DPOSettings, KTOSettings])
def test_training_all_weights_in_bfloat16_is_rejected(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"model\.autocast"):
        kind(model={"path": "tiny", "dtype": "bfloat16"})
    kind(model={"path": "tiny", "dtype": "bfloat16", "lora_rank": 8})
    kind(model={"path": "tiny", "autocast": True})


class FailingRubric(Rubric):
    """Gives no number to a third of the rollouts."""

    async def score(self, state: Any, parser: Any = None) -> Score:
        score = await super().score(state, parser)
        bad = state["index"] % 3 == 0
        return Score(math.inf if bad else score.reward, score.metrics)


def test_rewards_that_are_not_finite_raise_an_alert_that_names_the_function(
    puller: Path, tmp_path: Path
) -> None:
    def failing() -> BanditEnv:
        rows = [{"question": f"Machine {i % 7}. Answer <pull>lever</pull>.", "answer": ""} for i in range(64)]
        return BanditEnv(rows, max_turns=2, parser=PULL, rubric=FailingRubric([payoff]))

    train_grpo(opener_of(failing), settings_for(puller), tmp_path / "run")
    (alert,) = [line for line in read_alerts(tmp_path / "run") if line.rule == "failures"]
    assert "rubric" in alert.message
    assert "`payoff`" in alert.message
    assert read_metrics(tmp_path / "run")[0]["failed/rubric"] == 6


CHATML = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|done|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@pytest.fixture
def endless(puller: Path, tmp_path: Path) -> Path:
    """A model whose template closes turns with a token that is not among its ends."""
    loaded = load_model(puller, device="cpu")
    loaded.tokenizer.add_special_tokens({"additional_special_tokens": ["<|done|>"]})
    loaded.tokenizer.chat_template = CHATML
    loaded.model.resize_token_embeddings(len(loaded.tokenizer))
    folder = tmp_path / "endless"
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def test_turns_that_cannot_end_are_reported_and_fixed_by_sft(
    endless: Path, puller: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"<\|done\|>"):
        train_grpo(opener_of(bandit), settings_for(endless), tmp_path / "run")
    (warning,) = TransformersClient(endless, device="cpu").warnings()
    assert "<|done|>" in warning
    assert TransformersClient(puller, device="cpu").warnings() == []
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "<pull>1</pull>"}]}
    settings = SFTSettings(
        model={"path": str(endless), "device": "cpu"}, batch={"rows": 1}, schedule={"steps": 1}
    )
    tuned = train_sft([row], settings, tmp_path / "sft").model
    assert TransformersClient(tuned, device="cpu").warnings() == []
    train_grpo(opener_of(bandit), settings_for(tuned, schedule={"steps": 1}), tmp_path / "tuned")

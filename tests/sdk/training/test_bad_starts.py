"""Models that cannot be trained are refused before anything is played; a full disk costs no finished step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from wander import Rubric, ToolEnv
from wander.errors import ConfigError, InvalidResponse, RunError
from wander.models.loading import load_model, weights_digest
from wander.train.config import GRPOSettings
from wander.train.grpo import train_grpo
from wander.train.records.checkpoints import list_checkpoints
from wander.train.settings.toml_file import read_settings

from .conftest import bandit, opener_of, payoff


def settings_for(start: Path, **sections: Any) -> GRPOSettings:
    data: dict[str, Any] = {
        "model": {"path": str(start), "device": "cpu"},
        "batch": {"rollouts": 8, "group_size": 4, "rows_at_once": 8},
        "sampling": {"max_tokens": 6},
        "schedule": {"steps": 1, "learning_rate": 5e-3},
    }
    return GRPOSettings.model_validate(data | sections)


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A copy of the tiny policy, to be spoiled."""
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def add_token(model: Path, number: int, *, special: bool) -> None:
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    names = ("single_word", "lstrip", "rstrip", "normalized")
    token = {"id": number, "content": "<|extra|>", "special": special, **dict.fromkeys(names, False)}
    tokenizer["added_tokens"].append(token)
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))


def lookup(word: str) -> str:
    """Look a word up."""
    return word


def tools() -> ToolEnv:
    return ToolEnv([{"question": "What is it?", "answer": ""}], tools=[lookup], rubric=Rubric([payoff]))


def test_a_model_without_a_chat_template_cannot_use_tools(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").unlink()
    assert load_model(model).tokenizer.chat_template is None
    with pytest.raises(InvalidResponse, match="chat template does not support tools") as caught:
        train_grpo(opener_of(tools), settings_for(model), tmp_path / "tools")
    assert "wander model tools" in str(caught.value.hint)
    assert not (tmp_path / "tools").exists()
    assert train_grpo(opener_of(bandit), settings_for(model), tmp_path / "run").steps == 1


@pytest.mark.parametrize(
    "template", ["{% for m in messages %}{{ m.content }", "{{ messages | no_such_filter }}", "{% if %}"]
)
def test_an_invalid_template_is_rejected(model: Path, tmp_path: Path, template: str) -> None:
    (model / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match=r"the chat template of `.*model` cannot be parsed: .*, line 1"):
        train_grpo(opener_of(bandit), settings_for(model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_template_that_fails_the_probe_is_accepted(model: Path, tmp_path: Path) -> None:
    picky = "{% if messages[0].content == '?' %}{{ raise_exception('no') }}{% endif %}"
    file = model / "chat_template.jinja"
    file.write_text(picky + file.read_text())
    assert train_grpo(opener_of(bandit), settings_for(model), tmp_path / "run").steps == 1


def test_a_tokenizer_with_more_tokens_than_rows_is_rejected(model: Path, tmp_path: Path) -> None:
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    add_token(model, rows, special=False)
    with pytest.raises(ConfigError, match=f"a token has id {rows}, but the weights have {rows} rows"):
        train_grpo(opener_of(bandit), settings_for(model), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_special_token_that_no_text_becomes_may_lie_beyond_the_rows(model: Path) -> None:
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    add_token(model, rows, special=True)
    assert load_model(model).tokenizer.convert_tokens_to_ids("<|extra|>") == rows


def test_a_mixture_of_experts_is_rejected(model: Path, tmp_path: Path) -> None:
    rows = json.loads((model / "config.json").read_text())["vocab_size"]
    small = {"hidden_size": 16, "intermediate_size": 16, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}
    config = Qwen3MoeConfig(**small, **heads, num_experts=2, num_experts_per_tok=1, vocab_size=rows)
    Qwen3MoeForCausalLM(config).save_pretrained(model)
    with pytest.raises(ConfigError, match="is a mixture of experts: its balancing loss") as caught:
        train_grpo(opener_of(bandit), settings_for(model), tmp_path / "run")
    assert "wander model sft" in str(caught.value.hint)
    assert not (tmp_path / "run").exists()


def test_a_negative_staleness_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"`batch\.max_staleness`.*must be at least 0"):
        read_settings(GRPOSettings, None, ["batch.max_staleness=-1"], model={"path": "tiny"})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 700 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True).returncode:
        pytest.skip("only root may mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # weights may be mapped still


def test_a_full_disk_at_a_checkpoint_loses_no_earlier_step(
    tiny: Path, small_disk: Path, tmp_path: Path
) -> None:
    run = small_disk / "run"
    settings = settings_for(tiny, schedule={"steps": 4}, output={"checkpoint_every": 1, "rollouts_every": 0})
    with pytest.raises(RunError, match=f"the disk is full: cannot write to `{run}`") as caught:
        train_grpo(opener_of(bandit), settings, run)
    assert f"wander train --resume {run}" in str(caught.value.hint)
    kept = [one.step for one in list_checkpoints(run)]
    assert kept, "the first fit"
    assert len(list((run / "checkpoints").glob("checkpoint-*"))) > len(kept), "one was cut short"
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    steps: list[int] = []
    done = train_grpo(
        opener_of(bandit), settings, run, resume=True, progress=lambda entry: steps.append(entry["step"])
    )
    assert (done.steps, steps) == (4, list(range(kept[-1] + 1, 5))), "it went on from its last checkpoint"
    train_grpo(opener_of(bandit), settings, tmp_path / "whole")
    assert weights_digest(run / "model") == weights_digest(tmp_path / "whole" / "model")

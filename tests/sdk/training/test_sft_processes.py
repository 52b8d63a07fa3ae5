"""Fine-tuning in two processes that share the rows of each step, over gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from wander.errors import ConfigError
from wander.models.loading import load_model, weights_digest
from wander.train.config import SFTSettings
from wander.train.distributed import World
from wander.train.records.files import read_metrics
from wander.train.sft import IGNORED, LengthOrder, fill_last_step, tokenize_rows, train_sft

from .test_processes import launch, outcome
from .test_sft import rows


def uneven_rows(count: int) -> list[dict[str, Any]]:
    """Rows of different lengths, so that the processes learn from different numbers of tokens."""
    found = rows(count)
    for number, row in enumerate(found):
        row["messages"] += row["messages"][2:] * (number % 3)
    return found


def settings_for(model: Path, **schedule: Any) -> dict[str, Any]:
    return {
        "model": {"path": str(model), "device": "cpu"},
        "batch": {"rows": 8},
        "schedule": {"epochs": 2, "learning_rate": 1e-2, "eval_share": 0.2, "eval_every": 2, **schedule},
    }


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_two_processes_learn_the_same_as_one(tiny: Path, tmp_path: Path) -> None:
    learned, settings = uneven_rows(27), settings_for(tiny)
    kept = settings_for(tiny, checkpoint_every=2)
    adapters = settings | {"model": {**settings["model"], "lora_rank": 2}}

    def job(name: str, given: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"settings": given, "folder": str(tmp_path / name), "rows": learned, **more}

    cut, resumed = job("cut", kept, interrupt_at=2), job("cut", kept, resume=True)
    fails = job("fails", settings, broken_rank=1)
    odd = job("odd", settings | {"batch": {"rows": 9}})
    launch(
        [job("two", settings), job("adapters", adapters), cut, resumed, fails, odd],
        tmp_path,
    )
    one = train_sft(learned, SFTSettings.model_validate(settings), tmp_path / "one")
    train_sft(learned, SFTSettings.model_validate(adapters), tmp_path / "adapters-alone")

    for name, other in (("two", "one"), ("adapters", "adapters-alone")):
        pairs = list(zip(read_metrics(tmp_path / name), read_metrics(tmp_path / other), strict=True))
        assert len(pairs) == one.steps
        for first, second in pairs:
            for metric in ("loss", "grad_norm", "entropy", "mean_token_accuracy", "held_out/loss"):
                assert (metric in first) == (metric in second), metric
                if metric in first:
                    assert first[metric] == pytest.approx(second[metric], rel=1e-4, abs=1e-5), metric
        theirs = dict(load_model(tmp_path / other / "model", device="cpu").model.named_parameters())
        for weight_name, weight in load_model(
            tmp_path / name / "model", device="cpu"
        ).model.named_parameters():
            assert torch.allclose(weight, theirs[weight_name], rtol=0, atol=1e-5), weight_name
    # A run that was stopped and resumed ends with the same bits, in the folder of one run.
    assert outcome(resumed, 0) == {"steps": one.steps, "interrupted": False, "seen": [4, 5, 6]}
    assert weights_digest(tmp_path / "cut" / "model") == weights_digest(tmp_path / "two" / "model")
    lines = [json.loads(line) for line in (tmp_path / "cut" / "held_out.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted({0, *range(2, one.steps, 2), one.steps})

    assert "no row is left" in outcome(fails, 1)["message"]
    told = outcome(fails, 0)
    assert told["error"] == "PeerFailed"
    assert "process 1 of 2 failed: ConfigError: no row is left" in told["message"]
    assert [outcome(odd, rank)["error"] for rank in (0, 1)] == ["ConfigError"] * 2


def test_rows_must_be_shared_evenly(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alone(World):
        """One of three processes, which hears nothing of the others."""

        def exchange(self, items: list[Any]) -> list[Any]:
            return items

        def together(self, work: Any) -> Any:
            return work()

    for module in ("sft", "offline"):
        monkeypatch.setattr(f"wander.train.{module}.current_world", lambda device: Alone(0, 3))
    with pytest.raises(ConfigError, match="8 rows per step cannot be shared evenly by 3") as refused:
        train_sft(rows(), SFTSettings.model_validate(settings_for(tiny)), tmp_path)
    assert refused.value.hint == "make `batch.rows` a multiple of 3"


def test_padding_rows_complete_the_last_step_without_effect(tiny: Path) -> None:
    dataset, _ = tokenize_rows(rows(5), load_model(tiny, device="cpu"), 100)
    filled = fill_last_step(dataset, 4)
    assert (len(filled), len(fill_last_step(filled, 4))) == (8, 8)
    assert {label for row in filled.select([5, 6, 7]) for label in row["labels"]} == {IGNORED}
    order = list(LengthOrder(filled["length"], 4, seed=0))
    assert sorted(order) == list(range(8))
    assert order[-3:] == [5, 6, 7]
    assert order[:5] == list(LengthOrder(dataset["length"], 4, seed=0))

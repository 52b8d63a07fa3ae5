from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from wander.errors import ConfigError
from wander.models.loading import load_model, weights_digest
from wander.train.config import SFTSettings
from wander.train.sft import IGNORED, tokenized, train_sft


def settings_for(model: Path, **schedule: Any) -> SFTSettings:
    return SFTSettings(
        model={"path": str(model), "device": "cpu"},
        batch={"rows": 8},
        schedule={"steps": 12, "learning_rate": 1e-2, **schedule},
    )


def rows(count: int = 24) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"Machine {n % 7}. Answer <pull>lever</pull>."},
                {"role": "assistant", "content": "<pull>3</pull>"},
                {"role": "user", "content": "It paid 1.0. Pull again."},
                {"role": "assistant", "content": "<pull>3</pull>"},
            ]
        }
        for n in range(count)
    ]


def test_only_the_assistants_tokens_are_learnt(tiny: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    dataset, too_long = tokenized(rows(1), loaded, 100)
    learnt = [label for label in dataset[0]["labels"] if label != IGNORED]
    assert loaded.tokenizer.decode(learnt) == "<pull>3</pull><|end|><pull>3</pull><|end|>"
    assert too_long == 0


def test_the_loss_falls_and_the_model_says_what_it_learnt(tiny: Path, tmp_path: Path) -> None:
    shown: list[int] = []
    result = train_sft(
        rows(), settings_for(tiny, steps=40), tmp_path, progress=lambda entry: shown.append(entry["step"])
    )
    assert shown == list(range(1, 41))
    assert (result.rows, result.steps, result.interrupted) == (24, 40, False)
    assert result.final_loss < 0.5 < 3 < result.first_loss
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == shown
    loaded = load_model(result.model, device="cpu")
    ids = loaded.tokenizer.apply_chat_template(
        rows(1)[0]["messages"][:1], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    said = loaded.model.generate(
        ids, attention_mask=ids.new_ones(ids.shape), max_new_tokens=4, do_sample=False
    )
    assert loaded.tokenizer.decode(said[0, ids.shape[1] :]) == "<pull>3</pull><|end|>"


def test_same_seed_same_weights_on_a_cpu(tiny: Path, tmp_path: Path) -> None:
    digests = [
        weights_digest(train_sft(rows(), settings_for(tiny, steps=3, seed=seed), tmp_path / name).model)
        for name, seed in (("one", 1), ("two", 1), ("other", 2))
    ]
    assert digests[0] == digests[1] != digests[2]


def test_long_rows_are_counted_and_no_row_at_all_is_refused(tiny: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    long = {"messages": [{"role": "user", "content": "far too long " * 30}, *rows(1)[0]["messages"][1:2]]}
    dataset, too_long = tokenized([long, *rows(2)], loaded, 60)
    assert (len(dataset), too_long) == (2, 1)
    with pytest.raises(ConfigError, match="1 exceed 60 tokens"):
        tokenized([long], loaded, 60)


def test_a_row_without_an_answer_is_named(tiny: Path) -> None:
    loaded = load_model(tiny, device="cpu")
    with pytest.raises(ConfigError, match="row 2 cannot be learnt"):
        tokenized([*rows(1), {"messages": [{"role": "user", "content": "hello"}]}], loaded, 60)
